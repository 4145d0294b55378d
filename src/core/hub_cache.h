// Where the Hugging Face cache lies, read from the environment as huggingface_hub reads it. Shared
// by what fetches checkpoints into it and what looks them up there.
#pragma once

#include <string>
#include <vector>

namespace moxie {

/// HF_HOME, else $XDG_CACHE_HOME/huggingface, else ~/.cache/huggingface; holds the token too. "~"
/// and $VARIABLES in it are expanded. Empty if nothing says where.
std::string hub_home();
/// The folder that checkpoints are fetched into: HF_HUB_CACHE, else HUGGINGFACE_HUB_CACHE (its old
/// name), else "hub" in hub_home(). Empty if nothing says where.
std::string hub_cache();
/// All folders that the variables name, hub_cache() first: checkpoints are looked up in each.
std::vector<std::string> hub_caches();
/// The folder of a repository in a cache: "org/name" is "models--org--name".
std::string hub_repo_folder(std::string repo);
/// The value with a leading "~/" and with $NAME and ${NAME} replaced; unknown names stay as
/// written.
std::string expand_path(const std::string& path);

}  // namespace moxie
