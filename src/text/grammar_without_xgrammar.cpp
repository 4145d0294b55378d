// Structured output in a build without xgrammar: every grammar is refused with the reason.
#include "text/grammar_engine.h"

namespace moxie::grammar {

class CompiledGrammar {};

bool is_available() { return false; }

namespace {

class NoEngine : public GrammarEngine {
 public:
  Result<GrammarPtr> compile(const Translation&, const std::string& where) override {
    return fail("this build has no structured output", where,
                "build with -DMOXIE_STRUCTURED_OUTPUT=ON");
  }
};

}  // namespace

Result<std::unique_ptr<GrammarEngine>> GrammarEngine::create(std::shared_ptr<const Vocabulary>,
                                                             int) {
  return std::make_unique<NoEngine>();
}

const std::shared_ptr<const Vocabulary>& vocabulary_of(const CompiledGrammar&) {
  static const std::shared_ptr<const Vocabulary> kNone;
  return kNone;
}
size_t memory_bytes(const CompiledGrammar&) { return 0; }

struct Matcher::Impl {};
Matcher::Matcher(GrammarPtr) { CHECK(false, "there are no grammars in this build"); }
Matcher::~Matcher() = default;
Matcher::Matcher(const Matcher&) { CHECK(false, "there are no grammars in this build"); }
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher& Matcher::operator=(Matcher&&) noexcept = default;
void Matcher::fill_mask(std::span<uint32_t>) {}
bool Matcher::accept(int32_t) { return false; }
bool Matcher::is_complete() const { return false; }

}  // namespace moxie::grammar
