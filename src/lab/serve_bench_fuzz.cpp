// Any bytes as an endpoint's stream: no crash, and the same events however the bytes are cut.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lab/serve_bench_stream.h"

namespace {

std::vector<std::string> payloads_of(std::string_view stream, size_t piece) {
  moxie::SseReader reader;
  std::vector<std::string> payloads;
  for (size_t at = 0; at < stream.size(); at += piece) {
    if (!reader.read(stream.substr(at, piece), &payloads)) return payloads;
  }
  reader.finish(&payloads);
  return payloads;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moxie;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto payloads = payloads_of(text, text.size() + 1);
  CHECK(payloads == payloads_of(text, 1));
  CHECK(payloads == payloads_of(text, 7));
  for (const std::string& payload : payloads) {
    const auto chunk = read_stream_chunk(payload);
    if (!chunk) continue;
    CHECK(chunk->num_token_ids >= -1);
    CHECK(!chunk->has_content || chunk->has_choice);
    if (chunk->usage) CHECK(chunk->usage->num_prompt >= -1 && chunk->usage->num_completion >= -1);
  }
  (void)read_answer_usage(text);
  for (const char c : error_text(text)) CHECK(c >= 0x20 && c < 0x7f);
  return 0;
}
