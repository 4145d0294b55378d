// Finds stop strings in a text that comes in pieces. A stop string may span any number of pieces,
// so the longest end of the text that could begin one is held back.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moxie {

class StopStrings {
 public:
  /// `keep`: the stop string stays in the text.
  explicit StopStrings(std::vector<std::string> stops = {}, bool keep = false);

  /// Takes a piece and appends to `out` the text that can no longer begin a stop string. True: a
  /// stop string has come, and the text behind it is dropped; push() must not be called again.
  /// `may_end`: stop strings that end in this piece count.
  bool push(std::string_view piece, std::string* out, bool may_end = true);
  /// The text has ended: appends what was held back.
  void flush(std::string* out);
  bool empty() const { return stops_.empty(); }
  /// The stop string that was found.
  const std::string& found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  bool keep_;
  std::string held_, found_;
};

}  // namespace moxie
