// Tokens, requests, pages, and the launches' bytes as a share of the memory's read rate.
#include "server/status_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "engine/drafts_json.h"
#include "engine/plan.h"

namespace moxie {

std::optional<double> memory_share(const StatusModel& model, const ServiceStats& before,
                                   const ServiceStats& now, double seconds, double read_gb_s) {
  const int64_t tokens = now.generation_tokens - before.generation_tokens;
  const int64_t steps = now.num_steps - before.num_steps;
  if (steps <= 0 || tokens <= 0 || !(seconds > 0) || !(read_gb_s > 0)) return {};
  const auto streams = static_cast<int32_t>(std::clamp<int64_t>(tokens / steps, 1, INT32_MAX));
  const Work work = decode_work(model.config, model.weights, model.kv_dtype, 0, streams);
  return work.bytes * static_cast<double>(steps) / seconds / (read_gb_s * 1e9);
}

std::string status_line(const StatusModel& model, const ServiceStats& before,
                        const ServiceStats& now, double seconds, double read_gb_s) {
  const int64_t tokens = now.generation_tokens - before.generation_tokens;
  const int64_t steps = now.num_steps - before.num_steps;
  if (now.running <= 0 && now.waiting <= 0 && tokens <= 0) return "";
  if (!(seconds > 0)) return "";
  std::string line =
      fmt::format("running {}, waiting {}, {:.1f} tok/s, KV {:.1f}%", now.running, now.waiting,
                  static_cast<double>(tokens) / seconds, 100 * now.kv_usage());
  const DraftCounts drafts = now.drafts.since(before.drafts);
  if (drafts.num_drafts > 0) line += ", " + drafts_text(drafts);
  if (steps <= 0 || tokens <= 0) return line;
  const auto share = memory_share(model, before, now, seconds, read_gb_s);
  return share ? line + fmt::format(", {:.0f}% of the memory's limit", 100 * *share)
               : line + ", share of the memory's limit unknown";
}

}  // namespace moxie
