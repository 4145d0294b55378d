// moxie-write-checkpoint: writes a checkpoint with a model's true shapes and random weights.
#include "model/write_checkpoint.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>

#include "model/checkpoint.h"

namespace moxie {
namespace {

struct WriteFlags {
  std::string config = "synthetic:gpt-oss-20b", out;
  double shard_gb = 5;
  WriteCheckpointOptions options;
};

int report_failure(const Error& error) {
  std::fprintf(stderr, "moxie-write-checkpoint: error: %s\n", error.message().c_str());
  return 1;
}

int write(WriteFlags& flags) {
  auto checkpoint = open_checkpoint(flags.config);
  if (!checkpoint) return report_failure(checkpoint.error());
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [start] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const bool is_terminal = ::isatty(STDERR_FILENO) == 1;
  uint64_t total_bytes = 0;
  double last_s = 0;
  flags.options.on_progress = [&](uint64_t done, uint64_t total) {
    total_bytes = total;
    const double now_s = seconds();
    if (now_s - last_s < (is_terminal ? 0.1 : 5.0)) return;
    last_s = now_s;
    const double rate = static_cast<double>(done) / now_s;
    const std::string line =
        fmt::format("{:3.0f}%  {:.1f} of {:.1f} GB, {:.2f} GB/s, {:.0f} s left",
                    100.0 * static_cast<double>(done) / static_cast<double>(total), done / 1e9,
                    total / 1e9, rate / 1e9, static_cast<double>(total - done) / rate);
    std::fprintf(stderr, is_terminal ? "\r%s\x1b[K" : "%s\n", line.c_str());
  };
  flags.options.shard_bytes = static_cast<uint64_t>(flags.shard_gb * 1e9);
  const Status status = write_checkpoint((*checkpoint)->config(), flags.out, flags.options);
  if (is_terminal && last_s > 0) std::fputs("\r\x1b[K", stderr);
  if (!status) return report_failure(status.error());
  fmt::print("{}: {:.2f} GB in {:.2f} s, {:.2f} GB/s\n", flags.out, total_bytes / 1e9, seconds(),
             total_bytes / seconds() / 1e9);
  return 0;
}

}  // namespace
}  // namespace moxie

int main(int argc, char** argv) {
  moxie::WriteFlags flags;
  CLI::App app{
      "Writes a checkpoint in Hugging Face form with random weights: config.json, sharded "
      "safetensors and their index. No tokenizer: it is for measuring, not for talking."};
  app.name("moxie-write-checkpoint");
  app.set_version_flag("--version", std::string("moxie ") + MOXIE_VERSION);
  app.add_option("--config", flags.config,
                 "whose shapes: synthetic:gpt-oss-20b, synthetic:gpt-oss-120b, "
                 "synthetic:PATH/config.json, or any model that opens")
      ->capture_default_str();
  app.add_option("--out", flags.out, "folder to make")->required();
  app.add_option("--seed", flags.options.seed, "same seed, same bytes")->capture_default_str();
  app.add_option("--shard-gb", flags.shard_gb, "size of a shard, 1e9 bytes")
      ->check(CLI::Range(0.001, 1000.0))
      ->capture_default_str();
  app.add_option("--threads", flags.options.num_threads, "0: one a usable core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.footer("Example:\n  moxie-write-checkpoint --config synthetic:gpt-oss-20b --out /tmp/20b");
  CLI11_PARSE(app, argc, argv);
  return moxie::write(flags);
}
