// Times of other programs for an operation, from a file, to stand beside ours:
//   {"device": "NVIDIA H200", "results": [{"name": "...", "tokens": 7, "median_us": 1.5}]}
#pragma once

#include <string>
#include <vector>

#include "core/base.h"

namespace moxie {

struct PeerFigures {
  struct Figure {
    std::string name;
    int32_t tokens = 0;
    double median_us = 0;
  };
  std::string device;  ///< as the file names it
  std::vector<Figure> figures;
};

/// Fails on what is no such object, an unknown key, and a time that is not above zero. `where`
/// names the file.
Result<PeerFigures> parse_peer_figures(const std::string& text, const std::string& where);

}  // namespace moxie
