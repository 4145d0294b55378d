// The switches that name dense layers.
#include "model/weights.h"

#include <algorithm>

namespace moxie {

Result<DenseLayers> DenseLayers::parse(const std::string& text, const std::string& flag) {
  const bool takes_moe = flag == "--mxfp4-layers";
  DenseLayers layers;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    begin = end + 1;
    if (word == "qkv")
      layers.qkv = true;
    else if (word == "o")
      layers.o = true;
    else if (word == "lm_head")
      layers.lm_head = true;
    else if (word == "all")
      layers = {true, true, true};
    else if (!(takes_moe && word == "moe") && !text.empty())
      return fail("found \"" + word + "\"", flag,
                  takes_moe ? "a list of moe, qkv, o, lm_head, or all"
                            : "a list of qkv, o, lm_head, or all");
  }
  return layers;
}

}  // namespace moxie
