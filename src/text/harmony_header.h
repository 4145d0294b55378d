// Reads role, channel, recipient and content type from the decoded text of a harmony header: by
// openai-harmony's own rules, and by tolerant rules for headers that those refuse or misread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/harmony_parser.h"

namespace moxie::harmony {

constexpr std::string_view kChannelMarker = "<|channel|>";
constexpr std::string_view kConstrainMarker = "<|constrain|>";

bool is_known_channel(std::string_view word);  ///< analysis, commentary, final

/// A header as the package's rules read it.
struct StrictHeader {
  Header header;
  bool ok = false;
  bool bare_recipient = false;  ///< the recipient had no "to="
  std::string rest;             ///< whole_rest: the words after role and channel, single-spaced
};

/// Reads a header's text by the rules of openai-harmony 0.0.8. `role`: the hint, whose name may
/// come first. `whole_rest` (its lenient mode): recipient and content type are not parsed.
StrictHeader parse_header_strictly(std::string_view text, std::optional<Role> role,
                                   bool whole_rest = false);

/// Whether the rules accept a header but read it differently from what the model meant: a content
/// type or channel read as recipient, control tokens in a name, and the like.
bool is_misread(const StrictHeader& strict, const std::vector<std::string>& known_recipients);

/// A header whose only word is a content type, read by the package as a recipient.
bool is_lone_content_type(const StrictHeader& strict);

struct RepairedHeader {
  Header header;
  std::string rest;  ///< the text that belongs to no field
};

/// The best reading of a header that ended in <|message|>. Never fails. `bare`: it began without
/// <|start|>, so that its first word is more likely text than a tool's name.
RepairedHeader repair_header(std::string_view text, std::optional<Role> role, bool bare,
                             const std::vector<std::string>& known_recipients);

/// The best reading of a header that never came to <|message|>: its leading header parts, and all
/// text after them, verbatim. `bare` as above; `cut`: the stream ended here, so that the last word
/// may be incomplete.
RepairedHeader salvage_header(std::string_view text, std::optional<Role> role, bool bare, bool cut);

}  // namespace moxie::harmony
