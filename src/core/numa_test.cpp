// Core lists, nodes from a folder like the kernel's, threads and pages kept where they were asked
// to be.
#include "core/numa.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "core/threads.h"

namespace moxie {
namespace {

TEST(Numa, ListsOfCoresAreReadAndNonsenseLeftOut) {
  EXPECT_EQ(parse_core_list("0-3,8,10-11\n"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(parse_core_list("5"), (std::vector<int>{5}));
  EXPECT_TRUE(parse_core_list("").empty());
  EXPECT_EQ(parse_core_list("x,-1,3-,4-2,1e,7,99999999999,0-123456"), (std::vector<int>{7}));
}

TEST(Numa, CoresComeByNodeAsTheFolderSays) {
  const std::vector<UsableCore> flat = usable_cores("no/such/folder");
  ASSERT_FALSE(flat.empty());
  for (const UsableCore& core : flat) EXPECT_EQ(core.node, 0);

  const auto folder = std::filesystem::temp_directory_path() /
                      ("moxie_numa_" + std::to_string(static_cast<long>(getpid())));
  const auto write = [&](const char* node, const std::string& list) {
    std::filesystem::create_directories(folder / node);
    std::ofstream(folder / node / "cpulist") << list << '\n';
  };
  // The first usable core on node 3, all others on node 1.
  write("node3", std::to_string(flat.front().core));
  write("node1", std::to_string(flat.front().core + 1) + "-1023");
  write("nodes", "0-1023");
  std::vector<UsableCore> expected;
  for (size_t i = 1; i < flat.size(); ++i) expected.push_back({flat[i].core, 1});
  expected.push_back({flat.front().core, 3});
  EXPECT_EQ(usable_cores(folder), expected);
  std::filesystem::remove_all(folder);
}

// The cores that the thread of each of a pool's tasks may run on.
std::vector<std::set<int>> masks_of_workers(ThreadPool& pool) {
  std::vector<std::set<int>> masks(static_cast<size_t>(pool.num_threads()));
  std::atomic<int> num_here{0};
  auto task = [&](int64_t, int thread) {
    cpu_set_t set;
    CPU_ZERO(&set);
    ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(static_cast<size_t>(core), &set))
        masks[static_cast<size_t>(thread)].insert(core);
    ++num_here;
    while (num_here < pool.num_threads()) std::this_thread::yield();  // one task a thread
  };
  pool.run(pool.num_threads(), task);
  return masks;
}

TEST(Numa, WorkersAreKeptOnTheCoresOfTheirNodeAndTheCallerIsNot) {
  const std::vector<UsableCore> cores = usable_cores();
  std::set<int> all;
  for (const UsableCore& core : cores) all.insert(core.core);
  const std::vector<UsableCore> flat = usable_cores("no/such/folder");
  ThreadPool one_node(static_cast<int>(flat.size()) + 1, flat);
  for (const auto& mask : masks_of_workers(one_node)) EXPECT_EQ(mask, all);

  // Three threads on cores of two nodes, real or not.
  if (cores.size() < 2) GTEST_SKIP() << "one core";
  const std::vector<UsableCore> two = {{cores[0].core, 0}, {cores[1].core, 4}};
  ThreadPool more(3, two);
  EXPECT_EQ(more.node_of(0), 0);
  EXPECT_EQ(more.node_of(1), 0);
  EXPECT_EQ(more.node_of(2), 4);
  const auto by_node = masks_of_workers(more);
  EXPECT_EQ(by_node[0], all);
  EXPECT_EQ(by_node[1], std::set<int>{cores[0].core});
  EXPECT_EQ(by_node[2], std::set<int>{cores[1].core});
}

TEST(Numa, WholePagesPreferANode) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* mapped =
      mmap(nullptr, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* data = static_cast<std::byte*>(mapped);
  const int node = usable_cores().front().node;
  const Status done = prefer_node(data + 1, data + 3 * page + 1, node);
  if (!done) {
    munmap(mapped, 4 * page);
    GTEST_SKIP() << done.error().message();  // containers may forbid it
  }
  const auto policy_at = [&](size_t i) {
    int mode = -1;
    syscall(SYS_get_mempolicy, &mode, nullptr, 0, data + i * page, MPOL_F_ADDR);
    return mode;
  };
  EXPECT_EQ(policy_at(0), MPOL_DEFAULT);  // not a whole page of the range
  EXPECT_EQ(policy_at(1), MPOL_PREFERRED);
  EXPECT_EQ(policy_at(2), MPOL_PREFERRED);
  EXPECT_EQ(policy_at(3), MPOL_DEFAULT);
  std::memset(data, 1, 4 * page);
  munmap(mapped, 4 * page);
}

}  // namespace
}  // namespace moxie
