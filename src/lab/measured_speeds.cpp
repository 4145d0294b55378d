// The table of measured speeds, and the names of tests.
#include "lab/measured_speeds.h"

#include <charconv>

namespace moxie {
namespace {

using enum GpuRows;

constexpr const char* kDecision = "decisions/2026-11-26-products-on-any-gpu.md";

// product_gflops: wgmma for Hopper's rows, mma.sync for the others (637 to 654 TFLOPS in the
// decision's runs).
constexpr SpeedSource kSteps{"records/steps_h200.json", "H200", kHopper, 4672, 890e3};
constexpr SpeedSource kStreams{"records/streams_h200.json", "H200", kHopper, 4577, 888e3};
constexpr SpeedSource kValidate{"records/validate_120b_h200.json", "H200", kHopper, 4553, 880e3};
constexpr SpeedSource kBeside{"records/portable_rows_beside_h100.json", "H100", kHopper, 3160,
                              909e3};
constexpr SpeedSource kLimited{"records/portable_rows_h100.json", "H100", kPortable, 3157, 647e3};
constexpr SpeedSource kLimitedPrompts120b{"records/any_gpu_prompts_120b_h100.json", "H100",
                                          kPortable, 3154, 658e3};
constexpr SpeedSource kLimitedPrompts20b{"records/any_gpu_prompts_20b_h100.json", "H100", kPortable,
                                         3151, 658e3};
constexpr SpeedSource kSm80Code{"records/sm_80_code_on_h100.json", "H100", kSm80, 3164, 653e3};
constexpr SpeedSource kBesideText{kDecision, "H100", kHopper, 3160, 909e3};
constexpr SpeedSource kLimitedText{kDecision, "H100", kPortable, 3157, 647e3};
constexpr SpeedSource kSm80Text{kDecision, "H100", kSm80, 3164, 653e3};

constexpr MeasuredSpeed kSpeeds[] = {
    {&kSteps, "120b_prompts", "pp2048", 120, false, 37389.7},
    {&kSteps, "120b_prompts", "pp8192", 120, false, 48953.7},
    {&kSteps, "20b_prompts", "pp2048", 20, false, 72573.7},
    {&kSteps, "20b_prompts", "pp8192", 20, false, 80366.8},
    {&kSteps, "120b_mxfp4", "tg128@d128", 120, true, 861.8},
    {&kSteps, "120b_mxfp4", "tg128@d128@b8", 120, true, 1798.7},
    {&kSteps, "120b_checkpoint", "tg128@d128", 120, false, 627.4},
    {&kSteps, "120b_checkpoint", "tg128@d128@b8", 120, false, 1607.5},
    {&kSteps, "20b_mxfp4", "tg128@d128", 20, true, 1278.0},
    {&kSteps, "20b_mxfp4", "tg128@d128@b8", 20, true, 3251.6},
    {&kSteps, "20b_checkpoint", "tg128@d128", 20, false, 878.4},
    {&kSteps, "20b_checkpoint", "tg128@d128@b8", 20, false, 2798.0},
    {&kSteps, "120b_streams", "tg32@d1024@b64", 120, false, 3527.0},
    {&kSteps, "120b_mxfp4_depth", "tg64@d8192", 120, true, 770.3},
    {&kSteps, "120b_mxfp4_depth", "tg64@d32768", 120, true, 657.1},
    {&kStreams, "120b_prompts", "pp2048", 120, false, 36847.0},
    {&kStreams, "120b_prompts", "pp8192", 120, false, 48306.9},
    {&kStreams, "20b_prompts", "pp2048", 20, false, 71447.2},
    {&kStreams, "20b_prompts", "pp8192", 20, false, 78959.2},
    {&kStreams, "120b_mxfp4", "tg128@d128", 120, true, 859.0},
    {&kStreams, "120b_mxfp4", "tg128@d128@b8", 120, true, 1723.5},
    {&kStreams, "120b_checkpoint", "tg128@d128", 120, false, 623.2},
    {&kStreams, "120b_checkpoint", "tg128@d128@b8", 120, false, 1546.2},
    {&kStreams, "20b_mxfp4", "tg128@d128", 20, true, 1274.5},
    {&kStreams, "20b_mxfp4", "tg128@d128@b8", 20, true, 3167.7},
    {&kStreams, "20b_checkpoint", "tg128@d128", 20, false, 871.4},
    {&kStreams, "20b_checkpoint", "tg128@d128@b8", 20, false, 2714.8},
    {&kStreams, "120b_streams", "tg32@d1024@b64", 120, false, 3359.7},
    {&kStreams, "120b_mxfp4_depth", "tg64@d8192", 120, true, 767.4},
    {&kStreams, "120b_mxfp4_depth", "tg64@d32768", 120, true, 654.3},
    {&kValidate, "", "pp2048", 120, false, 36519.8},
    {&kValidate, "", "pp8192", 120, false, 46706.9},
    {&kValidate, "", "tg128", 120, false, 613.8},
    {&kValidate, "", "tg128@d2048", 120, false, 605.9},
    {&kValidate, "", "tg128@d8192", 120, false, 568.7},
    {&kBeside, "", "pp2048", 120, true, 33300.0},
    {&kBeside, "", "pp8192", 120, true, 47218.3},
    {&kBeside, "", "tg128", 120, true, 733.4},
    {&kLimitedPrompts120b, "", "pp2048", 120, true, 28558.3},
    {&kLimitedPrompts120b, "", "pp8192", 120, true, 35026.9},
    {&kLimited, "", "tg128", 120, true, 689.9},
    {&kSm80Code, "", "pp2048", 120, true, 23404.7},
    {&kSm80Code, "", "pp8192", 120, true, 27833.7},
    {&kSm80Code, "", "tg128", 120, true, 506.9},
    {&kSm80Code, "", "tg128@d4096", 120, true, 425.1},
    {&kBesideText, "", "tg32@d1024@b64", 120, true, 2928},
    {&kBesideText, "", "pp2048", 20, true, 71400},
    {&kBesideText, "", "pp8192", 20, true, 78000},
    {&kBesideText, "", "tg128", 20, true, 1084},
    {&kBesideText, "", "tg128@b8", 20, true, 2420},
    {&kLimitedText, "", "tg32@d1024@b64", 120, true, 2493},
    {&kLimitedPrompts20b, "", "pp2048", 20, true, 54718.7},
    {&kLimitedPrompts20b, "", "pp8192", 20, true, 54413.5},
    {&kLimitedText, "", "tg128", 20, true, 1020},
    {&kLimitedText, "", "tg128@b8", 20, true, 2422},
    {&kSm80Text, "", "tg32@d1024@b64", 120, true, 2356},
};

int32_t number_after(const std::string& text, const std::string& mark, int32_t otherwise) {
  const size_t at = text.find(mark);
  if (at == std::string::npos) return otherwise;
  int32_t number = 0;
  const char* first = text.data() + at + mark.size();
  std::from_chars(first, text.data() + text.size(), number);
  return number;
}

}  // namespace

const char* rows_name(GpuRows rows) {
  switch (rows) {
    case kHopper:
      return "Hopper's rows";
    case kPortable:
      return "portable rows";
    case kSm80:
      return "portable rows without clusters";
  }
  return "";
}

SpeedTest parse_test(const std::string& name) {
  return {.n_prompt = name.starts_with("pp") ? number_after(name, "pp", 0) : 0,
          .depth = number_after(name, "@d", 0),
          .streams = number_after(name, "@b", 1)};
}

std::span<const MeasuredSpeed> measured_speeds() { return kSpeeds; }

}  // namespace moxie
