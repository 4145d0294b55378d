// Divides an engine's model among ranks: which devices they have, what the others are told, and an
// engine that is itself another rank than the first.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/cuda_part.h"
#include "core/rank_gather.h"
#include "engine/engine.h"
#include "engine/parallel.h"
#include "engine/rank_meeting.h"
#include "model/shard.h"
#include "text/json_fields.h"

namespace moxie {

Result<std::vector<int>> named_gpus(const std::string& device) {
  std::vector<int> gpus;
  if (device == "cpu" || device == "auto" || device == "cuda") return gpus;
  const char* at = device.data() + std::min<size_t>(device.size(), 5);
  const char* const end = device.data() + device.size();
  for (bool is_named = device.starts_with("cuda:"); is_named;) {
    int index = 0;
    const auto [next, error] = std::from_chars(at, end, index);
    if (error != std::errc{} || index < 0 || (next != end && *next != ',')) break;
    gpus.push_back(index);
    if (next == end) return gpus;
    at = next + 1;
  }
  return fail("unknown device '" + device + "'", "--device", "cpu, cuda, cuda:N, cuda:N,M or auto");
}

Result<std::vector<int>> gpus_of_ranks(EngineOptions* options) {
  auto gpus = named_gpus(options->device);
  if (!gpus) return gpus;
  int& ranks = options->tensor_parallel;
  if (options->mirrors_ranks) {
    if (gpus->empty()) gpus->push_back(0);
    if (gpus->size() == 1) return gpus;
    return fail(options->device + " names several GPUs", "--mirror-ranks",
                "the first rank runs alone: name one GPU");
  }
  if (ranks == 1 && gpus->size() > 1) ranks = static_cast<int>(gpus->size());
  if (!gpus->empty() && std::cmp_not_equal(gpus->size(), ranks))
    return fail(fmt::format("{} names {} GPU{}, there are {} ranks", options->device, gpus->size(),
                            gpus->size() == 1 ? "" : "s", ranks),
                "--tensor-parallel-size", "name one a rank, or leave it to --device cuda");
  if (gpus->empty())
    for (int rank = 0; rank < ranks; ++rank) gpus->push_back(rank);
  return gpus;
}

Result<std::unique_ptr<Device>> open_gpu_of_rank(std::span<const int> gpus, size_t rank) {
  const int gpu = gpus[rank];
  const auto count = std::ranges::count(gpus, gpu);
  if (count == 1) return make_cuda_device(gpu);
  const auto before = std::ranges::count(gpus.first(rank), gpu);
  return make_part_of_cuda_device(gpu, static_cast<int>(before), static_cast<int>(count));
}

Result<std::optional<int>> gpu_of_process(const std::string& device, const RankWorld& world,
                                          int num_gpus) {
  const auto named = named_gpus(device);
  if (!named) return fail(named.error());
  if (device == "cpu" || (device == "auto" && num_gpus == 0)) return std::optional<int>();
  if (named->size() == 1) return named->front();
  for (const int gpu : *named)
    if (std::ranges::count(*named, gpu) > 1)
      return fail(fmt::format("{} names GPU {} twice", device, gpu), "--device",
                  "a process has a GPU of its own; ranks of one process may share one");
  const auto count = named->empty() ? num_gpus : static_cast<int>(named->size());
  if (count < world.local_size && num_gpus > 0)
    return fail(fmt::format("{} ranks on this host, {} GPU{}", world.local_size, count,
                            count == 1 ? "" : "s"),
                "--device",
                "start a process a GPU; --device cuda:0 where each sees only its own; or "
                "--device cpu");
  const auto local = static_cast<size_t>(world.local_rank);
  return named->empty() ? world.local_rank : (*named)[local];
}

// Of ranks that run without the others.
Status Engine::check_mirror() const {
  const char* const name = "--mirror-ranks";
  if (!options_.mirrors_ranks) return {};
  if (options_.world) return fail("processes are ranks already", name, "start one process");
  if (options_.tensor_parallel == 1)
    return fail("there is one rank", name, "--tensor-parallel-size 2");
  return {};
}

// Among ranks: those of the GPUs that `--device` names, or as many as asked for.
Status Engine::divide() {
  if (auto status = check_mirror(); !status) return status;
  if (options_.world) {
    const int32_t size = options_.world->size;
    const auto gpu = gpu_of_process(options_.device, *options_.world, num_cuda_devices());
    if (!gpu) return fail(gpu.error());
    options_.device = *gpu ? fmt::format("cuda:{}", **gpu) : "cpu";
    gpus_ = {gpu->value_or(0)};
    // By predicted times all take the same rows of an exchange, by their own times perhaps not.
    if (*gpu && options_.tuning.file == "auto") options_.tuning.file = "off";
    if (*gpu && options_.tuning.file != "off")
      return fail("processes with GPUs plan by predicted times only", "--tuning", "--tuning off");
    if (options_.tensor_parallel != 1 && options_.tensor_parallel != size)
      return fail(fmt::format("{} processes were started", size), "--tensor-parallel-size",
                  "leave it out, or start as many processes");
    options_.tensor_parallel = size;
    load_options_.rank = options_.world->rank;
  } else {
    auto gpus = gpus_of_ranks(&options_);
    if (!gpus) return fail(std::move(gpus.error()));
    gpus_ = std::move(*gpus);
  }
  const int n = options_.tensor_parallel;
  if (options_.expert_parallel && n == 1)
    return fail("there is one rank", "--enable-expert-parallel", "--tensor-parallel-size 2");
  load_options_.ranks = {.size = n, .splits_experts = options_.expert_parallel};
  return set_rank_config();
}

Status Engine::set_rank_config() {
  const int32_t rank = options_.world ? options_.world->rank : 0;
  auto config = config_of_rank(checkpoint_->config(), load_options_.ranks, rank);
  if (!config) return fail(std::move(config.error()));
  rank_config_ = std::move(*config);
  return {};
}

RankSetup Engine::rank_setup() {
  return {.checkpoint = checkpoint_.get(),
          .load = load_options_,
          .threads = options_.threads,
          .gpus = device_->kind() == DeviceKind::kCpu ? std::vector<int>{} : gpus_,
          .mirrors = options_.mirrors_ranks,
          .first_device = device_.get(),
          .choice = kernels_->choice(),
          .features = kernels_->features(),
          .rates = kernels_->rates(),
          .sizes = sizes_};
}

RankSizes Engine::rank_sizes() const {
  const bool is_cpu = device_->kind() == DeviceKind::kCpu;
  return {.kv_dtype = kv_dtype_,
          .use_sinks = options_.sinks,
          .taps = options_.taps,
          .max_model_len = plan_.max_model_len,
          .max_num_seqs = options_.max_num_seqs,
          .max_batch_tokens = plan_.max_batch_tokens,
          .max_logit_rows = options_.max_logit_rows,
          .num_full_pages = static_cast<int32_t>(plan_.pages.full),
          .num_window_pages = static_cast<int32_t>(plan_.pages.window),
          .table_stride = table_stride(),
          .use_graphs = options_.graphs == "on",
          .caches_graphs = options_.speculation.method != SpecMethod::kOff && !is_cpu,
          .skips_taps = draft_checkpoint_ != nullptr,
          .costs = tuning_.tuning == nullptr ? GptOss::RowCosts{} : row_costs(tuning_.tuning)};
}

namespace {

using Json = nlohmann::ordered_json;

struct Size {
  const char* name;
  int32_t RankSizes::*member;
};
constexpr Size kSizes[] = {{"max_model_len", &RankSizes::max_model_len},
                           {"max_num_seqs", &RankSizes::max_num_seqs},
                           {"max_batch_tokens", &RankSizes::max_batch_tokens},
                           {"max_logit_rows", &RankSizes::max_logit_rows},
                           {"num_full_pages", &RankSizes::num_full_pages},
                           {"num_window_pages", &RankSizes::num_window_pages},
                           {"table_stride", &RankSizes::table_stride}};

// What rank 0 tells the others, and what they make of it; `id` of NCCL where they have GPUs.
Json plan_of(const RankSizes& sizes) {
  Json plan = {{"kv_dtype", static_cast<int>(sizes.kv_dtype)}, {"use_sinks", sizes.use_sinks}};
  for (const auto& [name, size] : kSizes) plan[name] = sizes.*size;
  return plan;
}
Status read_plan(const nlohmann::json& plan, RankSizes* sizes, NcclId* id) {
  JsonFields::Fault fault;
  JsonFields fields(plan, "", "rank 0's plan", &fault);
  const auto integer = [&](const char* name, int32_t most) {
    return static_cast<int32_t>(fields.integer(name, 0, most));
  };
  sizes->kv_dtype = static_cast<DType>(integer("kv_dtype", static_cast<int32_t>(DType::kQ8_0)));
  sizes->use_sinks = fields.boolean("use_sinks");
  for (const auto& [name, size] : kSizes) sizes->*size = integer(name, INT32_MAX);
  sizes->taps.clear();
  const auto read =
      id == nullptr ? std::optional<NcclId>(NcclId{}) : nccl_id(fields.text("nccl_id"));
  fields.done();
  if (fault || !read)
    return fail("rank 0's plan: " + (fault ? fault->what : "no id of NCCL"), "ranks",
                "start all ranks with the same build");
  if (id != nullptr) *id = *read;
  return {};
}

// Makes the id of the ranks' communicator, on rank 0.
Result<NcclLibrary> open_nccl(NcclId* id) {
  auto nccl = load_nccl();
  if (!nccl || id == nullptr) return nccl;
  const int result = nccl->get_unique_id(id);
  if (result == NcclLibrary::kSuccess) return nccl;
  return fail(nccl->text_of(result), "NCCL", "NCCL_DEBUG=WARN shows why");
}

}  // namespace

// What ranks must have in common is theirs to say; how much each keeps is rank 0's.
Status Engine::meet_ranks() {
  const bool has_gpus = device_->kind() == DeviceKind::kCuda, is_first = options_.world->rank == 0;
  Json terms = {{"the build", options_.tuning.commit},
                {"the device", has_gpus ? "a GPU" : "a CPU"},
                {"--mxfp4-layers", options_.mxfp4_layers},
                {"--enable-expert-parallel", options_.expert_parallel},
                {"--batch-invariant", options_.batch_invariant},
                {"--seed", options_.seed},
                {"the model's files", checkpoint_kind_name(checkpoint_->kind())},
                {"the model's config", config_json(config())},
                {"the model's bytes", checkpoint_->packed_bytes(whole_load_options())}};
  Json plan = plan_of(sizes_);
  NcclLibrary nccl;
  NcclId id{};
  if (has_gpus) {
    terms["--kernel"] = options_.kernels;  // all take the same row of an exchange
    auto found = open_nccl(is_first ? &id : nullptr);
    if (!found) return fail(std::move(found.error()));
    nccl = *found;
    plan["nccl_id"] = to_text(id);
  }
  auto meeting = RankMeeting::meet(*options_.world, terms, &plan);
  if (!meeting) {
    options_.world.reset();  // for load(): the others have been told
    return fail(std::move(meeting.error()));
  }
  meeting_ = std::move(*meeting);
  if (!is_first) {
    if (auto status = read_plan(plan, &sizes_, has_gpus ? &id : nullptr); !status) return status;
    kv_dtype_ = sizes_.kv_dtype;
  }
  if (!has_gpus) return {};
  auto link = make_nccl_link(meeting_->link(), nccl, id, *device_, *stream_);
  if (!link) return fail(std::move(link.error()));
  gpu_link_ = std::move(*link);
  return {};
}

Status Engine::follow_first_rank() {
  CHECK(meeting_ != nullptr && options_.world->rank > 0);
  meeting_->say_loaded();
  for (;;) {
    auto bytes = meeting_->next_order();
    if (!bytes) return fail(std::move(bytes.error()));
    if (!*bytes) return {};
    auto order = rank_order(**bytes);
    auto status = order ? follow_order(*order, *runner_) : Status(fail(order.error()));
    if (auto of_ranks = link()->status(); !of_ranks) status = std::move(of_ranks);
    if (status) continue;
    meeting_->end_with_fault(status.error().message());
    return status;
  }
}

// Null: there is one rank.
RankLink* Engine::link() {
  if (meeting_ != nullptr) return &meeting_->link();
  return ranks_ == nullptr ? nullptr : &ranks_->link();
}

uint64_t Engine::weights_bytes() const {
  return weights_.packed_bytes + (ranks_ == nullptr ? 0 : ranks_->weights_bytes());
}

// On a fault of any rank the launches of all end without sound answers, and devices may fail.
Status Engine::ranks_status(Status of_device) const {
  auto of_ranks = ranks_ == nullptr ? Status{} : ranks_->link().status();
  return of_ranks ? std::move(of_device) : std::move(of_ranks);
}

}  // namespace moxie
