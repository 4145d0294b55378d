// The cores that this process may use with their NUMA nodes, and placing memory on nodes. With one
// node, all cores are on node 0 and nothing needs placing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base.h"

namespace moxie {

struct UsableCore {
  int core = 0;
  int node = 0;  ///< the kernel's number of the node
  bool operator==(const UsableCore&) const = default;
};

/// The cores of the affinity mask by node, then by number; at least one. `nodes_folder` has a
/// folder node<i> with a file `cpulist` for each node; a core that none of them names is on node 0.
std::vector<UsableCore> usable_cores(const std::string& nodes_folder = "/sys/devices/system/node");

/// The number of usable_cores().
int num_usable_cores();

/// The numbers in a list as the kernel writes it, "0-3,8,10-11"; malformed items are left out.
std::vector<int> parse_core_list(std::string_view list);

/// Keeps this thread on these cores; false if the kernel refuses.
bool keep_on(std::span<const UsableCore> cores);

/// Asks the kernel (mbind) to take whole untouched pages in [begin, end) from the kernel's node
/// `node` while that has free pages. Fails if the kernel or a container's rules refuse; the memory
/// is usable all the same.
Status prefer_node(const std::byte* begin, const std::byte* end, int node);

}  // namespace moxie
