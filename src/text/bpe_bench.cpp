// Speed of loading and encoding, on one core. Give the rank table as the last argument:
//   moxie_text_bench [google-benchmark flags] o200k_base.tiktoken
// The texts are generated here, so that figures from two machines are comparable.
#include <benchmark/benchmark.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <random>

#include "text/bpe.h"

namespace moxie {
namespace {

std::string g_ranks;
std::optional<Tokenizer> g_tokenizer;

std::string repeated(std::string_view part, size_t num_bytes) {
  std::string text;
  while (text.size() < num_bytes) text += part;
  return text;
}

// Sentences of English words drawn with falling frequency; every fiftieth word is invented.
std::string english(size_t num_bytes) {
  constexpr std::string_view kWords[] = {
      "the",      "of",         "and",      "to",      "a",        "in",       "is",
      "that",     "it",         "was",      "for",     "on",       "with",     "as",
      "not",      "this",       "which",    "from",    "have",     "when",     "water",
      "people",   "machine",    "language", "window",  "through",  "between",  "question",
      "morning",  "government", "didn't",   "they'll", "however",  "possible", "understanding",
      "computer", "Monday",     "London",   "2024",    "remember", "strange",  "unlikely"};
  std::mt19937 random(7);
  std::string text;
  for (size_t i = 0; text.size() < num_bytes; ++i) {
    const size_t limit = 1 + random() % std::size(kWords);
    if (i % 50 == 49) {
      for (size_t k = 0; k < 8; ++k) text += static_cast<char>('a' + random() % 26);
    } else {
      text += kWords[random() % limit];
    }
    text += i % 12 == 11 ? ".\n" : i % 7 == 6 ? ", " : " ";
  }
  return text;
}

void encode(benchmark::State& state, const std::string& text) {
  std::vector<int32_t> ids;
  for (auto _ : state) {
    ids.clear();
    g_tokenizer->encode(text, SpecialMode::kNone, &ids);
    benchmark::DoNotOptimize(ids.data());
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
  state.counters["bytes_per_token"] =
      static_cast<double>(text.size()) / static_cast<double>(ids.size());
}

void load(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::from_tiktoken(g_ranks));
}

void add_benchmarks() {
  constexpr size_t kBytes = size_t{1} << 20;
  const std::pair<const char*, std::string> texts[] = {
      {"encode/english", english(kBytes)},
      {"encode/code", repeated("  for (int i = 0; i < num_rows; ++i) {\n"
                               "    total += values[i] * kScale;  // weighted\n  }\n\n",
                               kBytes)},
      {"encode/chinese", repeated("\xE4\xBD\xA0\xE5\xA5\xBD\xEF\xBC\x8C\xE4\xB8\x96\xE7\x95\x8C"
                                  "\xE8\xBF\x99\xE6\x98\xAF\xE4\xB8\x80\xE4\xB8\xAA\xE6\xB5\x8B"
                                  "\xE8\xAF\x95\xE3\x80\x82",
                                  kBytes)},
      {"encode/digits", repeated("31415926535897932384626433832795", kBytes)},
      {"encode/one_letter", repeated("a", kBytes)},
      {"encode/one_letter_10MB", repeated("a", 10 * kBytes)},
      {"encode/spaces_10MB", repeated(" ", 10 * kBytes)},
  };
  for (const auto& [name, text] : texts) {
    benchmark::RegisterBenchmark(name, encode, text)->Unit(benchmark::kMillisecond);
  }
  benchmark::RegisterBenchmark("load/tiktoken", load)->Unit(benchmark::kMillisecond);
}

}  // namespace
}  // namespace moxie

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc != 2) {
    std::cerr << "usage: moxie_text_bench [flags] o200k_base.tiktoken\n";
    return 2;
  }
  std::ifstream file(argv[1], std::ios::binary);
  moxie::g_ranks.assign(std::istreambuf_iterator<char>(file), {});
  auto made = moxie::Tokenizer::from_tiktoken(moxie::g_ranks, argv[1]);
  if (!made) {
    std::cerr << made.error().message() << "\n";
    return 1;
  }
  moxie::g_tokenizer = std::move(*made);
  moxie::add_benchmarks();
  benchmark::RunSpecifiedBenchmarks();
}
