// Stop strings in a text that comes in pieces: they may lie across any number of pieces, so that
// the longest end of the text that could begin one is held back.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moxie {

class StopStrings {
 public:
  /// `keep`: the stop string stays in the text.
  explicit StopStrings(std::vector<std::string> stops = {}, bool keep = false);

  /// Takes a piece; appends to `out` what is certain by now. True: a stop string has come, and what
  /// stands behind it is dropped. Not to be called again then.
  bool push(std::string_view piece, std::string* out);
  /// The text has ended: what was held back is text after all.
  void flush(std::string* out);
  bool empty() const { return stops_.empty(); }
  /// The stop string that came.
  const std::string& found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  bool keep_;
  std::string held_, found_;
};

}  // namespace moxie
