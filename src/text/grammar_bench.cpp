// The cost of structured output with o200k's vocabulary: making a mask at several places of an
// answer, accepting a token, and compiling with empty caches.
#include <benchmark/benchmark.h>

#include "text/bpe_testing.h"
#include "text/grammar.h"
#include "text/grammar_vocabulary.h"

namespace moxie {
namespace {

constexpr int32_t kVocabSize = 201'088;
constexpr const char* kPerson =
    R"({"type":"object","properties":{"name":{"type":"string"},"nick":{"type":"string","maxLength":200},
        "age":{"type":"integer","minimum":0,"maximum":150},"tags":{"type":"array","items":{"type":
        "string"}},"day":{"type":"string","format":"date"}},"required":["name","nick","age"]})";

std::unique_ptr<grammar::Compiler> new_compiler() {
  auto compiler = grammar::Compiler::create(testing::o200k(), kVocabSize);
  CHECK(compiler.has_value(), compiler.error().message());
  return std::move(*compiler);
}

std::unique_ptr<grammar::AnswerConstraint> answer_after(grammar::Compiler& compiler,
                                                        const std::string& text) {
  const grammar::AnswerSpec spec = {
      .response = grammar::Source{.text = kPerson},
      .tools = {{.name = "get_weather", .parameters = kPerson}, {.name = "get_time"}}};
  auto answer = grammar::AnswerConstraint::create(compiler, spec, nullptr);
  CHECK(answer.has_value(), answer.error().message());
  for (const int32_t id : testing::o200k().encode(text, SpecialMode::kAll)) {
    CHECK((*answer)->accept(id).has_value(), "the text does not follow the grammar: " + text);
  }
  return std::move(*answer);
}

void mask(benchmark::State& state, const std::string& text) {
  static const auto kCompiler = new_compiler();
  const auto answer = answer_after(*kCompiler, text);
  std::vector<uint32_t> bits(kVocabSize / 32);
  for (auto _ : state) {
    answer->fill_mask(bits);
    benchmark::DoNotOptimize(bits.data());
  }
}

void compile(benchmark::State& state) {
  for (auto _ : state) {
    state.PauseTiming();
    const auto compiler = new_compiler();
    state.ResumeTiming();
    CHECK(compiler->compile({.text = kPerson}, "bench").has_value());
  }
}

void begin_answer(benchmark::State& state) {
  const auto compiler = new_compiler();
  for (auto _ : state) benchmark::DoNotOptimize(answer_after(*compiler, ""));
}

const std::string kFinal = "<|channel|>final<|message|>";
BENCHMARK_CAPTURE(mask, header, std::string());
BENCHMARK_CAPTURE(mask, recipient, std::string("<|channel|>commentary to=functions."));
BENCHMARK_CAPTURE(mask, reasoning, std::string("<|channel|>analysis<|message|>Hmm"));
BENCHMARK_CAPTURE(mask, object_begins, kFinal);
BENCHMARK_CAPTURE(mask, string, kFinal + "{\"name\": \"Ad");
BENCHMARK_CAPTURE(mask, counted_string, kFinal + "{\"name\": \"Ada\", \"nick\": \"lo");
BENCHMARK_CAPTURE(mask, integer, kFinal + "{\"name\": \"Ada\", \"nick\": \"lo\", \"age\": 1");
BENCHMARK_CAPTURE(mask, optional_members,
                  kFinal + "{\"name\": \"Ada\", \"nick\": \"lo\", \"age\": 1,");
BENCHMARK(begin_answer);
BENCHMARK(compile)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace moxie

BENCHMARK_MAIN();
