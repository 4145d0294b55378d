// A record with every field set, for tests of what reads records.
#pragma once

#include "lab/record.h"

namespace moxie {

inline Record sample_record() {
  Record record{.kind = "bench",
                .command = {"bench", {"--n-gen=32", "--threads=2"}},
                .valid = true,
                .environment = {.version = "0.1.0", .commit = std::string(40, 'a')}};
  Environment& e = record.environment;
  e.hostname_hash = "0123456789abcdef";
  e.time_utc = "2030-01-31T23:59:59Z";
  e.cpu = "a CPU";
  e.num_cores = 2;
  e.load_average = {0.5, 0.25, 0.125};
  e.cpu_used_by_others = 0.0625;
  e.cpu_clock_mhz_before = 2500;
  e.cpu_temperature_celsius = 51;
  e.cpu_throttle_events = 0;
  e.gpus = {{.name = "a GPU",
             .driver = "580.1",
             .memory_bytes = 1 << 30,
             .sm_clock_mhz_before = 1980,
             .sm_clock_mhz_after = 1755,
             .power_watts = 700,
             .throttle_reasons = "power cap"}};
  record.machine = {.cpu = "a CPU", .num_threads = 2, .read_gb_s = 20};
  record.machine.fp32 = {100, "avx2 vfmadd231ps"};
  record.configuration = {{"--kv-dtype", "bf16", "default"}, {"--threads", "2", "flag"}};
  record.weights = {.model = "embedded", .hash = "ab", .formats = {"mxfp4", "bf16"}, .bytes = 77};
  record.workload = {.num_output_tokens = 32, .seed = 7, .num_warm_ups = 1};
  record.kernel_path = {{"experts", "experts_reference", 24, "tg32", true}};
  record.results = {{.name = "tg32", .unit = "tok/s", .samples = {10, 12, 11, 10.5, 11.5, 11}},
                    {.name = "itl", .unit = "ms", .samples = {7.5, 8}, .better = Better::kLower}};
  record.results[1].workload = Workload{.num_output_tokens = 32};
  record.results[1].limit_launches_s = {5e5, 4.5e5};
  record.results[1].joules_per_token = 0.75;
  record.energy_joules = 12.5;
  record.energy_source = "rapl";
  record.details = R"({"drafts":[1,2]})";
  return record;
}

}  // namespace moxie
