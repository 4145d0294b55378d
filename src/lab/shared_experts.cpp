// Reads choices of experts back after each layer, and counts them.
#include "lab/shared_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "kernels/embed/embed.h"
#include "kernels/experts/experts.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;
using ByTokens = SharedExperts::ByTokens;

// Sums over places, by layer and by number of tokens.
struct Sums {
  std::vector<ByTokens> distinct;  // [layers]
  std::array<int64_t, std::tuple_size_v<ByTokens>> num_places{};
  int64_t num_tokens = 0;
  std::vector<int64_t> guessed;  // [layers], experts
  size_t top_k = 0;

  void add(const Routes& routes, const Routes& guesses, size_t first, size_t num_ids) {
    distinct.resize(routes.size());
    guessed.resize(guesses.size());
    num_tokens += static_cast<int64_t>(num_ids - first);
    for (size_t l = 0; l < guesses.size(); ++l)
      for (size_t at = first; at < num_ids; ++at)
        guessed[l] += num_common(std::span(routes[l]).subspan(at * top_k, top_k),
                                 std::span(guesses[l]).subspan(at * top_k, top_k));
    for (size_t n = 0; n < num_places.size(); ++n) {
      const size_t count = n + SharedExperts::kLeastTokens;
      for (size_t at = first; at + count <= num_ids; ++at) {
        ++num_places[n];
        for (size_t l = 0; l < routes.size(); ++l) {
          const auto chosen = std::span(routes[l]).subspan(at * top_k, count * top_k);
          distinct[l][n] += static_cast<double>(num_distinct(chosen));
        }
      }
    }
  }
  SharedExperts::Part part(const std::string& name) const {
    SharedExperts::Part part{.name = name, .num_tokens = num_tokens, .layers = distinct};
    for (ByTokens& layer : part.layers) {
      for (size_t n = 0; n < layer.size(); ++n) {
        if (num_places[n] > 0) layer[n] /= static_cast<double>(num_places[n]);
        part.mean[n] += layer[n] / static_cast<double>(part.layers.size());
      }
    }
    for (const int64_t count : guessed) {
      part.guessed.push_back(static_cast<double>(count) /
                             static_cast<double>(num_tokens * static_cast<int64_t>(top_k)));
      part.mean_guessed += part.guessed.back() / static_cast<double>(guessed.size());
    }
    return part;
  }

 private:
  static int64_t num_common(std::span<const int32_t> a, std::span<const int32_t> b) {
    return std::ranges::count_if(
        a, [&](int32_t expert) { return std::ranges::find(b, expert) != b.end(); });
  }
  size_t num_distinct(std::span<const int32_t> chosen) {
    sorted_.assign(chosen.begin(), chosen.end());
    std::sort(sorted_.begin(), sorted_.end());
    return static_cast<size_t>(std::unique(sorted_.begin(), sorted_.end()) - sorted_.begin());
  }
  std::vector<int32_t> sorted_;
};

// While it lives, choices of each launch are appended to `routes`, layer by layer, and what the
// routers choose before the layers to `guessed`, unless it is null.
class RouteReader {
 public:
  RouteReader(Engine& engine, Routes* routes, Routes* guessed)
      : engine_(engine), routes_(*routes), guessed_(guessed) {
    engine.kernels().set_on_run([this](const OpInfo& op, const char*, auto, auto) {
      if (&op == &Op<ExpertsParams>::info) read();
      if (&op == &Op<ExpertsParams>::info || &op == &Op<EmbedParams>::info) guess();
    });
  }
  ~RouteReader() { engine_.kernels().set_on_run(nullptr); }
  RouteReader(const RouteReader&) = delete;
  RouteReader& operator=(const RouteReader&) = delete;

  Status begin(size_t num_tokens) {
    num_choices_ = num_tokens * static_cast<size_t>(engine_.config().top_k);
    layer_ = 0;
    return guessed_ == nullptr ? Status{} : make_room(static_cast<int32_t>(num_tokens));
  }
  // Fails if not every layer has been read.
  Status end() const {
    if (!status_) return status_;
    if (layer_ != routes_.size())
      return fail(fmt::format("{} of {} layers showed their experts", layer_, routes_.size()),
                  "shared experts", "--kernel experts=auto --graphs off");
    return {};
  }

 private:
  void read() {
    if (status_ && layer_ < routes_.size())
      status_ = append(engine_.activations().expert_ids, &routes_[layer_]);
    ++layer_;
  }
  Status append(const int32_t* choices, std::vector<int32_t>* to) {
    const size_t before = to->size();
    to->resize(before + num_choices_);
    auto status = engine_.device().copy_to_host(to->data() + before, choices,
                                                num_choices_ * sizeof(int32_t), engine_.stream());
    return status ? engine_.stream().synchronize() : status;
  }

  // Sets what all guesses of a launch have in common.
  Status make_room(int32_t num_tokens) {
    const GptOssConfig& config = engine_.config();
    const auto plan = engine_.model().plan_for(bracket_of(num_tokens, 1, 0), engine_.kv_dtype());
    if (!plan) return fail(plan.error());
    const uint64_t tokens = static_cast<uint64_t>(num_tokens);
    const uint64_t of_t =
        round_up<uint64_t>(4 * tokens * static_cast<uint64_t>(config.hidden), 256);
    const uint64_t of_choices = round_up<uint64_t>(4 * num_choices_, 256);
    auto room = engine_.device().allocate(of_t + 2 * of_choices);
    if (!room) return fail(std::move(room.error()));
    room_ = std::move(*room);
    const Activations& act = engine_.activations();
    params_ = {
        .launch = engine_.kernels().launch(&engine_.stream(), act.workspace, act.workspace_bytes),
        .num_tokens = num_tokens,
        .hidden = config.hidden,
        .top_k = config.top_k,
        .rms_eps = config.rms_eps,
        .x = act.x,
        .t = room_.as<float>(),
        .expert_ids = reinterpret_cast<int32_t*>(room_.data() + of_t),
        .expert_weights = reinterpret_cast<float*>(room_.data() + of_t + of_choices)};
    params_.forms.x = (*plan)->embed.forms.x;
    params_.forms.l1 = (*plan)->embed.forms.l1;
    params_.launch.l1 = params_.forms.l1;
    return {};
  }
  void guess() {
    if (guessed_ == nullptr || !status_ || layer_ >= guessed_->size()) return;
    const LayerWeights& layer = engine_.weights().layers[layer_];
    params_.norm_weight = layer.post_norm;
    params_.weight = layer.router;
    params_.bias = layer.router_bias;
    engine_.kernels().run(params_);
    status_ = append(params_.expert_ids, &(*guessed_)[layer_]);
  }

  Engine& engine_;
  Routes& routes_;
  Routes* guessed_;
  RouteParams params_;
  Buffer room_;
  size_t num_choices_ = 0, layer_ = 0;
  Status status_;
};

Result<std::vector<int32_t>> ids_of(const Json& value, const std::string& where,
                                    const Tokenizer* tokenizer, int32_t vocab) {
  if (value.is_string()) {
    if (tokenizer == nullptr)
      return fail("a text of words, and the model has no tokenizer", where, "give token ids");
    return tokenizer->encode(value.get<std::string>(), SpecialMode::kAll);
  }
  std::vector<int32_t> ids;
  if (!value.is_array()) return fail("a text is a string or a list of token ids", where);
  for (const Json& id : value) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocab)
      return fail("no token id: " + id.dump(), where, fmt::format("0 to {}", vocab - 1));
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

Json part_json(const SharedExperts::Part& part) {
  return {{"name", part.name},
          {"tokens", part.num_tokens},
          {"mean", part.mean},
          {"layers", part.layers},
          {"guessed", {{"mean", part.mean_guessed}, {"layers", part.guessed}}}};
}

}  // namespace

Result<Routes> read_routes(Engine& engine, std::span<const int32_t> ids, Routes* guessed) {
  // Launches of few tokens are recorded into graphs there, whose kernels nothing can read between.
  if (engine.graphs() != nullptr)
    return fail("with --spec on a GPU choices of experts cannot be read", "shared experts",
                "leave out --spec: it changes no choice");
  Routes routes(static_cast<size_t>(engine.config().num_layers));
  if (guessed != nullptr) guessed->assign(routes.size(), {});
  RouteReader reader(engine, &routes, guessed);
  const SeqId seq = engine.kv().add_sequence();
  const auto most = static_cast<size_t>(engine.options().max_batch_tokens);
  Status status;
  for (size_t at = 0; status && at < ids.size(); at += most) {
    const Chunk chunk{seq, ids.subspan(at, std::min(most, ids.size() - at)), Logits::kNone};
    status = reader.begin(chunk.tokens.size());
    if (!status) break;
    const auto done = engine.step({&chunk, 1});
    status = done ? reader.end() : Status(fail(done.error()));
  }
  if (status) status = engine.synchronize();
  engine.kv().free_sequence(seq);
  if (!status) return fail(std::move(status.error()));
  return routes;
}

Result<SharedExperts> measure_shared_experts(Engine& engine, std::span<const RoutedText> texts) {
  const GptOssConfig& config = engine.config();
  SharedExperts shared{.num_experts = config.num_experts, .top_k = config.top_k};
  for (size_t n = 0; n < shared.independent.size(); ++n) {
    shared.independent[n] = expected_distinct_experts(
        config.num_experts, config.top_k, static_cast<int64_t>(n) + SharedExperts::kLeastTokens);
  }
  std::vector<std::string> names;
  std::map<std::string, Sums> by_name;
  Sums all;
  for (const RoutedText& text : texts) {
    if (std::cmp_greater(text.ids.size(), engine.plan().max_model_len))
      return fail(fmt::format("a text of {} tokens where {} fit", text.ids.size(),
                              engine.plan().max_model_len),
                  text.name, "--max-model-len larger");
    Routes guessed;
    auto routes = read_routes(engine, text.ids, engine.num_ranks() > 1 ? nullptr : &guessed);
    if (!routes) return fail(std::move(routes.error()));
    if (!by_name.contains(text.name)) names.push_back(text.name);
    for (Sums* sums : {&all, &by_name[text.name]}) {
      sums->top_k = static_cast<size_t>(config.top_k);
      sums->add(*routes, guessed, text.first, text.ids.size());
    }
  }
  if (all.num_places.back() == 0)
    return fail(fmt::format("no text has {} tokens", SharedExperts::kMostTokens), "shared experts",
                "a longer text");
  shared.all = all.part("all");
  for (const std::string& name : names) shared.parts.push_back(by_name[name].part(name));
  return shared;
}

nlohmann::ordered_json to_json(const SharedExperts& shared) {
  Json tokens = Json::array(), parts = Json::array();
  for (int32_t n = SharedExperts::kLeastTokens; n <= SharedExperts::kMostTokens; ++n)
    tokens.push_back(n);
  for (const SharedExperts::Part& part : shared.parts) parts.push_back(part_json(part));
  return {{"num_experts", shared.num_experts}, {"top_k", shared.top_k},
          {"neighbours", std::move(tokens)},   {"independent", shared.independent},
          {"all", part_json(shared.all)},      {"texts", std::move(parts)}};
}

Result<std::vector<RoutedText>> parse_routed_texts(const std::string& json,
                                                   const std::string& where,
                                                   const Tokenizer* tokenizer, int32_t vocab) {
  const Json document = Json::parse(json, nullptr, false);
  if (!document.is_object())
    return fail("expected {\"name\": [text, ...], ...}", where, "see docs/speculation.md");
  std::vector<RoutedText> texts;
  for (const auto& [name, list] : document.items()) {
    const std::string at = fmt::format("{}: {}", where, name);
    if (!list.is_array()) return fail("expected a list of texts", at);
    for (const Json& entry : list) {
      const bool has_prompt = entry.is_object();
      if (has_prompt &&
          !(entry.size() == 2 && entry.contains("prompt") && entry.contains("answer")))
        return fail("expected {\"prompt\": ..., \"answer\": ...}", at);
      auto ids = ids_of(has_prompt ? entry["answer"] : entry, at, tokenizer, vocab);
      if (!ids) return fail(std::move(ids.error()));
      RoutedText text{.name = name, .ids = std::move(*ids)};
      if (has_prompt) {
        auto prompt = ids_of(entry["prompt"], at, tokenizer, vocab);
        if (!prompt) return fail(std::move(prompt.error()));
        text.first = prompt->size();
        text.ids.insert(text.ids.begin(), prompt->begin(), prompt->end());
      }
      if (text.ids.empty()) return fail("an empty text", at);
      texts.push_back(std::move(text));
    }
  }
  if (texts.empty()) return fail("no text", where);
  return texts;
}

}  // namespace moxie
