// The state of an answer in harmony: which headers may come, and the grammar of each content.
#include <algorithm>
#include <set>
#include <utility>

#include "text/grammar.h"
#include "text/grammar_header.h"
#include "text/grammar_schema.h"

namespace moxie::grammar {
namespace {

constexpr size_t kMaxTools = 512;
constexpr size_t kMaxToolNameBytes = 256;

Status check_names(const std::vector<ToolSpec>& tools) {
  if (tools.size() > kMaxTools) {
    return fail("more than " + std::to_string(kMaxTools) + " tools", "tools");
  }
  std::set<std::string> seen;
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string& name = tools[i].name;
    const std::string where = "tools[" + std::to_string(i) + "].function.name";
    const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
      return static_cast<unsigned char>(c) > 0x20 && c != '<' && c != 0x7F;
    });
    if (name.empty() || name.size() > kMaxToolNameBytes || !plain) {
      return fail("a tool's name must have 1 to " + std::to_string(kMaxToolNameBytes) +
                      " bytes, no white space and no \"<\"",
                  where);
    }
    if (!seen.insert(name).second) return fail("two tools named \"" + name + "\"", where);
  }
  return {};
}

}  // namespace

struct AnswerConstraint::Impl {
  enum class Phase {
    kHeader,
    kFree,      // reasoning, a preamble, or an answer without a grammar
    kBound,     // text under `matcher`
    kAfterEnd,  // <|start|> must follow
    kDone,
  };

  std::shared_ptr<const Vocabulary> vocabulary;
  std::optional<HeaderRules> headers;  // none: a raw completion
  std::vector<std::string> tool_names;
  std::vector<GrammarPtr> arguments;  // by tool
  GrammarPtr response;
  bool may_answer = true;    // the final channel
  bool must_arrive = false;  // at most one reasoning and preamble before answer or call

  Phase phase = Phase::kHeader;
  HeaderState header;
  std::string header_text;
  HeaderKind kind = HeaderKind::kFinal;
  std::optional<Matcher> matcher;
  bool has_reasoned = false, has_preamble = false;

  std::vector<HeaderKind> kinds() const {
    std::vector<HeaderKind> out;
    if (!must_arrive || !has_reasoned) out.push_back(HeaderKind::kAnalysis);
    // A preamble is shown as content, which must follow the response format.
    if (response == nullptr && (!must_arrive || !has_preamble))
      out.push_back(HeaderKind::kPreamble);
    if (may_answer) out.push_back(HeaderKind::kFinal);
    if (!tool_names.empty()) out.push_back(HeaderKind::kCall);
    return out;
  }

  /// The tool that a finished header names.
  size_t called_tool() const {
    constexpr std::string_view kPrefix = "to=functions.";
    const size_t begin = header_text.find(kPrefix) + kPrefix.size();
    const size_t end = header_text.find_first_of(" <", begin);
    const std::string name = header_text.substr(begin, end - begin);
    const auto it = std::find(tool_names.begin(), tool_names.end(), name);
    CHECK(it != tool_names.end(), "a header with the name " + name);
    return static_cast<size_t>(it - tool_names.begin());
  }

  void open_message(HeaderKind opened) {
    kind = opened;
    phase = Phase::kFree;
    has_reasoned = has_reasoned || kind == HeaderKind::kAnalysis;
    has_preamble = has_preamble || kind == HeaderKind::kPreamble;
    if (kind == HeaderKind::kFinal && response != nullptr) {
      matcher.emplace(response);
      phase = Phase::kBound;
    } else if (kind == HeaderKind::kCall) {
      matcher.emplace(arguments[called_tool()]);
      phase = Phase::kBound;
    }
  }

  /// For a raw completion made with the first token: it is large, and thousands of requests may
  /// wait.
  Matcher& bound() {
    if (!matcher) matcher.emplace(response);
    return *matcher;
  }

  /// The control tokens that may end the message now.
  std::vector<int32_t> ends() {
    const harmony::ControlTokens& control = vocabulary->control();
    if (phase == Phase::kBound && !bound().is_complete()) return {};
    if (!headers) {
      std::vector<int32_t> ids = {control.return_token};
      if (control.endoftext) ids.push_back(*control.endoftext);
      return ids;
    }
    switch (kind) {
      case HeaderKind::kFinal:
        return {control.return_token};
      case HeaderKind::kCall:
        return {control.call};
      default:
        return {control.end};
    }
  }

  tl::unexpected<Error> refused(int32_t token) const {
    return fail("token " + std::to_string(token) + " may not follow here", "structured output");
  }
};

AnswerConstraint::AnswerConstraint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AnswerConstraint::~AnswerConstraint() = default;

Result<std::unique_ptr<AnswerConstraint>> AnswerConstraint::create(
    Compiler& compiler, const AnswerSpec& spec, std::vector<std::string>* relaxed) {
  if (const Status named = check_names(spec.tools); !named) return fail(named.error());
  if (!spec.response && spec.tools.empty()) return nullptr;
  auto impl = std::make_unique<Impl>();
  impl->vocabulary = compiler.vocabulary();
  const bool must_call =
      spec.tool_choice == ToolChoice::kRequired || spec.tool_choice == ToolChoice::kNamed;
  impl->may_answer = !must_call;
  for (size_t i = 0; i < spec.tools.size() && spec.tool_choice != ToolChoice::kNone; ++i) {
    const ToolSpec& tool = spec.tools[i];
    if (spec.tool_choice == ToolChoice::kNamed && tool.name != spec.tool_name) continue;
    const std::string where = "tools[" + std::to_string(i) + "].function.parameters";
    auto grammar = compiler.compile(
        {.text = tool.parameters.value_or(R"({"type":"object","additionalProperties":false})")},
        where);
    if (!grammar && !tool.strict.value_or(must_call) && is_available()) {
      if (const Status valid = check_schema(*tool.parameters, where); !valid) {
        return fail(valid.error());
      }
      if (relaxed != nullptr) relaxed->push_back(grammar.error().message());
      grammar = compiler.compile({.kind = Source::Kind::kJsonObject}, where);
    }
    if (!grammar) return fail(grammar.error());
    impl->tool_names.push_back(tool.name);
    impl->arguments.push_back(std::move(*grammar));
  }
  if (must_call && impl->tool_names.empty()) {
    const bool named = spec.tool_choice == ToolChoice::kNamed;
    return fail(named ? "no tool is named \"" + spec.tool_name + "\""
                      : "a call is required, but there are no tools",
                "tool_choice");
  }
  if (spec.response && impl->may_answer) {
    auto response = compiler.compile(*spec.response, spec.response_field);
    if (!response) return fail(response.error());
    impl->response = std::move(*response);
  }
  impl->must_arrive = must_call || impl->response != nullptr;
  impl->headers.emplace(impl->vocabulary, impl->tool_names, impl->response != nullptr);
  impl->header = impl->headers->begin(impl->kinds());
  return std::unique_ptr<AnswerConstraint>(new AnswerConstraint(std::move(impl)));
}

Result<std::unique_ptr<AnswerConstraint>> AnswerConstraint::create_raw(Compiler& compiler,
                                                                       const Source& source,
                                                                       const std::string& field) {
  auto grammar = compiler.compile(source, field);
  if (!grammar) return fail(grammar.error());
  auto impl = std::make_unique<Impl>();
  impl->vocabulary = compiler.vocabulary();
  impl->response = std::move(*grammar);
  impl->phase = Impl::Phase::kBound;
  return std::unique_ptr<AnswerConstraint>(new AnswerConstraint(std::move(impl)));
}

std::unique_ptr<AnswerConstraint> AnswerConstraint::fork() const {
  return std::unique_ptr<AnswerConstraint>(new AnswerConstraint(std::make_unique<Impl>(*impl_)));
}

bool AnswerConstraint::is_done() const { return impl_->phase == Impl::Phase::kDone; }

void AnswerConstraint::fill_mask(std::span<uint32_t> mask) {
  const harmony::ControlTokens& control = impl_->vocabulary->control();
  const std::vector<uint32_t>& text = impl_->vocabulary->text_mask();
  CHECK(mask.size() >= text.size());
  switch (impl_->phase) {
    case Impl::Phase::kHeader:
      return impl_->headers->fill_mask(impl_->header, mask);
    case Impl::Phase::kFree:
      std::fill(std::copy(text.begin(), text.end(), mask.begin()), mask.end(), 0u);
      break;
    case Impl::Phase::kBound:
      impl_->bound().fill_mask(mask);
      break;
    case Impl::Phase::kAfterEnd:
      std::fill(mask.begin(), mask.end(), 0u);
      return set_bit(mask, control.start);
    case Impl::Phase::kDone:
      std::fill(mask.begin(), mask.end(), 0u);
      return set_bit(mask, control.return_token);
  }
  for (const int32_t id : impl_->ends()) set_bit(mask, id);
}

Status AnswerConstraint::accept(int32_t token) {
  Impl& state = *impl_;
  const harmony::ControlTokens& control = state.vocabulary->control();
  switch (state.phase) {
    case Impl::Phase::kHeader: {
      HeaderState next = state.headers->next(state.header, token);
      if (next.empty()) return state.refused(token);
      state.header = std::move(next);
      const std::string_view text = state.vocabulary->text_of(token);
      state.header_text += text.empty() ? std::string_view("<") : text;
      if (const auto kind = state.headers->finished(state.header)) state.open_message(*kind);
      return {};
    }
    case Impl::Phase::kFree:
    case Impl::Phase::kBound: {
      const std::vector<int32_t> ends = state.ends();
      if (std::find(ends.begin(), ends.end(), token) != ends.end()) {
        state.matcher.reset();
        state.phase = token == control.end ? Impl::Phase::kAfterEnd : Impl::Phase::kDone;
        return {};
      }
      const bool follows = state.phase == Impl::Phase::kBound
                               ? state.bound().accept(token)
                               : !state.vocabulary->text_of(token).empty();
      if (!follows) return state.refused(token);
      return {};
    }
    case Impl::Phase::kAfterEnd:
      if (token != control.start) return state.refused(token);
      state.phase = Impl::Phase::kHeader;
      state.header = state.headers->begin_with_role(state.kinds());
      state.header_text.clear();
      return {};
    case Impl::Phase::kDone:
      return {};
  }
  return {};
}

}  // namespace moxie::grammar
