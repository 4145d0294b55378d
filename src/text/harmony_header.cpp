// Three readers of a header: the package's rules, the repair of a complete header (every word goes
// to the field that it was most likely meant for), and the salvage of one without <|message|>.
#include "text/harmony_header.h"

#include <algorithm>
#include <array>

#include "text/unicode.h"
#include "text/utf8.h"

namespace moxie::harmony {
namespace {

constexpr std::array<std::string_view, 3> kChannels = {"analysis", "commentary", "final"};
constexpr std::array<std::string_view, 7> kMarkers = {"<|channel|>", "<|constrain|>", "<|start|>",
                                                      "<|end|>",     "<|message|>",   "<|return|>",
                                                      "<|call|>"};
constexpr std::string_view kTo = "to=";

bool is_ascii_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\f' || c == '\r'; }

// Bytes of the Unicode white space at text[pos], 0 if there is none.
size_t space_bytes(std::string_view text, size_t pos) {
  const Utf8Char c = decode_utf8(text, pos);
  if (!c.valid) return 0;
  const CharClass cls = char_class(c.code_point);
  return cls == CharClass::kSpace || cls == CharClass::kNewline ? c.size_bytes : 0;
}

size_t skip_spaces(std::string_view text, size_t pos) {
  while (pos < text.size()) {
    const size_t num_bytes = space_bytes(text, pos);
    if (num_bytes == 0) break;
    pos += num_bytes;
  }
  return pos;
}

std::string_view trim(std::string_view text) {
  text.remove_prefix(skip_spaces(text, 0));
  size_t end = 0;  // past the last character that is no space
  for (size_t pos = 0; pos < text.size();) {
    const size_t num_bytes = space_bytes(text, pos);
    pos += num_bytes > 0 ? num_bytes : decode_utf8(text, pos).size_bytes;
    if (num_bytes == 0) end = pos;
  }
  return text.substr(0, end);
}

std::vector<std::string_view> ascii_words(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t pos = 0; pos < text.size();) {
    if (is_ascii_space(text[pos])) {
      ++pos;
      continue;
    }
    size_t end = pos;
    while (end < text.size() && !is_ascii_space(text[end])) ++end;
    words.push_back(text.substr(pos, end - pos));
    pos = end;
  }
  return words;
}

// The end of a channel's name that begins at `pos`: white space or '<'.
size_t channel_end(std::string_view text, size_t pos) {
  while (pos < text.size() && text[pos] != '<' && space_bytes(text, pos) == 0) {
    pos += decode_utf8(text, pos).size_bytes;
  }
  return pos;
}

std::string spaced_before_markers(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const size_t marker = text.find(kConstrainMarker, pos);
    out += text.substr(pos, marker - pos);
    if (marker == std::string_view::npos) break;
    out += ' ';
    out += kConstrainMarker;
    pos = marker + kConstrainMarker.size();
  }
  return out;
}

bool is_plain_type(std::string_view word) { return word == "json" || word == "code"; }

bool looks_like_tool(std::string_view word) {
  return word.starts_with("functions.") || word.starts_with("browser.") || word == "python" ||
         word == "browser";
}

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

// A content type glued to a tool's name, found with the list of tools; empty if there is none.
std::string_view glued_type(std::string_view recipient, const std::vector<std::string>& known) {
  if (known.empty() || contains(known, recipient)) return {};
  for (const std::string_view type : {"json", "code"}) {
    if (recipient.ends_with(type) &&
        contains(known, recipient.substr(0, recipient.size() - type.size()))) {
      return type;
    }
  }
  return {};
}

// The known channel that a damaged name stands for: "commentary?", "finalfinal"; empty if none.
std::string_view damaged_channel(std::string_view word) {
  for (const std::string_view channel : kChannels) {
    if (!word.starts_with(channel)) continue;
    std::string_view tail = word.substr(channel.size());
    while (!tail.empty()) {
      if (tail.starts_with(channel)) {
        tail.remove_prefix(channel.size());
      } else if (std::string_view("?!.,:;-_=*'\"`)(").find(tail[0]) != std::string_view::npos) {
        tail.remove_prefix(1);
      } else {
        break;
      }
    }
    if (tail.empty()) return channel;
  }
  return {};
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

// A word or marker of a header.
struct Item {
  enum class Kind { kWord, kChannel, kConstrain, kOther } kind;
  std::string_view text;
};

// Splits at Unicode white space and around markers.
std::vector<Item> items_of(std::string_view text) {
  std::vector<Item> items;
  size_t pos = 0;
  size_t word = std::string_view::npos;
  const auto end_word = [&] {
    if (word != std::string_view::npos) {
      items.push_back({Item::Kind::kWord, text.substr(word, pos - word)});
    }
    word = std::string_view::npos;
  };
  while (pos < text.size()) {
    const auto marker = std::ranges::find_if(
        kMarkers, [&](std::string_view name) { return text.substr(pos).starts_with(name); });
    if (text[pos] == '<' && marker != kMarkers.end()) {
      end_word();
      const Item::Kind kind = *marker == kChannelMarker     ? Item::Kind::kChannel
                              : *marker == kConstrainMarker ? Item::Kind::kConstrain
                                                            : Item::Kind::kOther;
      items.push_back({kind, text.substr(pos, marker->size())});
      pos += marker->size();
    } else if (const size_t num_bytes = space_bytes(text, pos); num_bytes > 0) {
      end_word();
      pos += num_bytes;
    } else {
      if (word == std::string_view::npos) word = pos;
      pos += decode_utf8(text, pos).size_bytes;
    }
  }
  end_word();
  return items;
}

std::string_view unquoted(std::string_view word) {
  while (!word.empty() && (word.front() == '"' || word.front() == '\'')) word.remove_prefix(1);
  while (!word.empty() && (word.back() == '"' || word.back() == '\'' || word.back() == ',')) {
    word.remove_suffix(1);
  }
  return word;
}

// The length of a leading "to=" or "to:", 0 if there is none.
size_t to_bytes(std::string_view word) {
  return word.starts_with(kTo) || word.starts_with("to:") ? kTo.size() : 0;
}

// Gives every item of a complete header to the field that it was most likely meant for.
class HeaderRepair {
 public:
  HeaderRepair(std::string_view text, const std::vector<std::string>& known)
      : text_(text), items_(items_of(text)), known_(known) {}

  RepairedHeader run(std::optional<Role> role, bool bare) {
    read_role(role, bare);
    while (at_ < items_.size()) read_item();
    finish();
    return std::move(out_);
  }

 private:
  bool word_follows() const { return at_ < items_.size() && items_[at_].kind == Item::Kind::kWord; }

  void read_role(std::optional<Role> hint, bool bare) {
    Header& header = out_.header;
    header.role = hint.value_or(Role::kAssistant);
    bool found = hint.has_value();
    while (at_ < items_.size() && items_[at_].kind == Item::Kind::kOther) ++at_;
    while (word_follows()) {
      const std::string_view word = items_[at_].text;
      const size_t colon = word.find(':');
      const auto role = role_from_name(lower(word.substr(0, colon)));
      if (!role || (found && *role != header.role)) break;
      header.role = *role;
      found = true;
      if (colon != std::string_view::npos && colon + 1 < word.size()) {
        header.name = std::string(word.substr(colon + 1));
      }
      ++at_;
    }
    if (found || !word_follows()) return;
    const std::string_view word = items_[at_].text;
    if (to_bytes(word) > 0 || is_known_channel(word) || is_plain_type(word)) return;
    if (bare && !looks_like_tool(word) && !contains(known_, word)) return;
    header.role = Role::kTool;
    header.name = std::string(word);
    ++at_;
  }

  void read_item() {
    const Item item = items_[at_++];
    switch (item.kind) {
      case Item::Kind::kOther:
        break;
      case Item::Kind::kChannel:
        if (word_follows()) read_channel(items_[at_++].text);
        break;
      case Item::Kind::kConstrain:
        if (word_follows()) {
          read_constrain(items_[at_++].text);
        } else if (type_.empty()) {
          type_ = kConstrainMarker;
        }
        break;
      case Item::Kind::kWord:
        read_word(item.text);
        break;
    }
  }

  void read_channel(std::string_view word) {
    if (to_bytes(word) > 0) return read_word(word);
    if (const size_t angle = word.find('<'); angle != std::string_view::npos && angle > 0) {
      read_channel(word.substr(0, angle));
      return leave(word.substr(angle));
    }
    if (const std::string_view known = damaged_channel(word); !known.empty()) {
      channel_ = known;
      return;
    }
    for (const std::string_view known : kChannels) {  // "commentaryto=functions.f"
      if (word.starts_with(known) && to_bytes(word.substr(known.size())) > 0) {
        channel_ = known;
        return read_word(word.substr(known.size()));
      }
    }
    unknown_channel_ = word;
  }

  void read_constrain(std::string_view word) {
    if (looks_like_tool(word) || contains(known_, word)) {
      if (recipient_.empty()) recipient_ = word;
    } else if (is_known_channel(word)) {
      channel_ = word;
    } else if (const size_t brace = word.find_first_of("{["); brace != std::string_view::npos) {
      type_ = std::string(kConstrainMarker) + std::string(word.substr(0, brace));
      leave(word.substr(brace));
    } else {
      type_ = std::string(kConstrainMarker) + std::string(word);
    }
  }

  void read_word(std::string_view word) {
    if (const size_t num_bytes = to_bytes(word); num_bytes > 0) {
      std::string_view name = word.substr(num_bytes);
      if (name.empty() && word_follows()) name = items_[at_++].text;
      recipient_ = unquoted(name);
      has_recipient_ = true;
    } else if (is_plain_type(word)) {
      if (!type_.starts_with(kConstrainMarker)) type_ = word;
    } else if (is_known_channel(word)) {
      if (channel_.empty()) channel_ = word;
    } else if (recipient_.empty() && (looks_like_tool(word) || contains(known_, word))) {
      recipient_ = word;
    } else {
      leave(word);
    }
  }

  // Text that belongs to no field is kept verbatim, with the white space between its words.
  void leave(std::string_view word) {
    const size_t begin = static_cast<size_t>(word.data() - text_.data());
    if (out_.rest.empty()) {
      rest_end_ = begin;
    } else if (skip_spaces(text_, rest_end_) != begin) {
      out_.rest += ' ';
      rest_end_ = begin;
    }
    out_.rest += text_.substr(rest_end_, begin + word.size() - rest_end_);
    rest_end_ = begin + word.size();
  }

  void finish() {
    Header& header = out_.header;
    if (channel_.empty() && !unknown_channel_.empty()) {
      // An unknown name is a channel, unless it looks like the first word of a text.
      if (out_.rest.empty()) {
        channel_ = unknown_channel_;
      } else {
        out_.rest = unknown_channel_ + " " + out_.rest;
      }
    }
    if (const std::string_view type = glued_type(recipient_, known_); !type.empty()) {
      if (type_.empty()) type_ = type;
      recipient_.resize(recipient_.size() - type.size());
    }
    if (!channel_.empty()) header.channel = channel_;
    if (!recipient_.empty() || has_recipient_) header.recipient = recipient_;
    if (!type_.empty()) header.content_type = type_;
  }

  std::string_view text_;
  const std::vector<Item> items_;
  const std::vector<std::string>& known_;
  size_t at_ = 0;
  std::string channel_;
  std::string unknown_channel_;
  std::string recipient_;
  bool has_recipient_ = false;  // a "to=" was there, even an empty one
  std::string type_;
  size_t rest_end_ = 0;
  RepairedHeader out_;
};

// Reads header fields from the front of a text, up to the first text that is none.
class HeaderSalvage {
 public:
  HeaderSalvage(std::string_view text, bool cut) : text_(text), cut_(cut) {}

  RepairedHeader run(std::optional<Role> role, bool bare) {
    out_.header.role = role.value_or(Role::kAssistant);
    read_role(role, bare);
    while (read_part()) {
    }
    std::string_view rest = text_.substr(pos_);
    // Text without a header before it is kept verbatim, blanks included.
    if (any_part_) rest.remove_prefix(skip_spaces(rest, 0));
    if (trim(rest).empty() || (cut_ && is_begun_part(rest))) rest = {};
    out_.rest = rest;
    return std::move(out_);
  }

 private:
  std::string_view after_spaces() const { return text_.substr(skip_spaces(text_, pos_)); }

  void advance_to(std::string_view rest) {
    pos_ = text_.size() - rest.size();
    any_part_ = true;
  }

  void read_role(std::optional<Role> hint, bool bare) {
    std::string_view rest = after_spaces();
    while (rest.starts_with("<|start|>")) {
      advance_to(rest.substr(9));
      rest = after_spaces();
      bare = false;
    }
    const size_t end = channel_end(rest, 0);
    const std::string_view word = rest.substr(0, end);
    const auto role = role_from_name(word);
    const bool before_marker = rest.substr(end).starts_with("<|") || (cut_ && end == rest.size());
    if (role && (hint ? *role == *hint : true) && (!bare || before_marker)) {
      out_.header.role = *role;
      advance_to(rest.substr(end));
    } else if (!hint && !bare && looks_like_tool(word)) {
      out_.header.role = Role::kTool;
      out_.header.name = std::string(word);
      advance_to(rest.substr(end));
    }
  }

  bool read_part() {
    const std::string_view rest = after_spaces();
    if (rest.starts_with(kChannelMarker)) return read_channel(rest.substr(kChannelMarker.size()));
    if (rest.starts_with(kConstrainMarker)) {
      return read_constrain(rest.substr(kConstrainMarker.size()));
    }
    if (to_bytes(rest) > 0) return read_recipient(rest.substr(to_bytes(rest)));
    if (out_.header.recipient && !out_.header.content_type) return read_plain_type(rest);
    return false;
  }

  bool read_channel(std::string_view rest) {
    const size_t end = channel_end(rest, 0);
    const std::string_view word = rest.substr(0, end);
    std::string_view known = damaged_channel(word);
    size_t used = end;
    for (const std::string_view channel : kChannels) {  // "finalHello"
      if (known.empty() && word.starts_with(channel)) {
        known = channel;
        used = channel.size();
      }
    }
    if (!known.empty()) {
      out_.header.channel = std::string(known);
      advance_to(rest.substr(used));
    } else {
      advance_to(rest);  // not a channel's name: text
      if (cut_ && end == rest.size() && begins_channel(word)) advance_to(rest.substr(end));
    }
    return true;
  }

  bool read_constrain(std::string_view rest) {
    size_t end = 0;
    while (end < rest.size() && rest[end] >= 'a' && rest[end] <= 'z') ++end;
    const std::string_view word = rest.substr(0, end);
    if (is_plain_type(word) || !out_.header.content_type) {
      out_.header.content_type = std::string(kConstrainMarker) + std::string(word);
    }
    advance_to(rest.substr(end));
    return true;
  }

  bool read_recipient(std::string_view rest) {
    rest.remove_prefix(skip_spaces(rest, 0));
    const size_t end = channel_end(rest, 0);
    out_.header.recipient = std::string(unquoted(rest.substr(0, end)));
    advance_to(rest.substr(end));
    return true;
  }

  bool read_plain_type(std::string_view rest) {
    for (const std::string_view type : {"json", "code"}) {
      if (!rest.starts_with(type)) continue;
      const std::string_view after = rest.substr(type.size());
      const bool ends = after.empty() || after[0] == '{' || after[0] == '[' || after[0] == '<' ||
                        space_bytes(after, 0) > 0;
      if (!ends) continue;
      out_.header.content_type = std::string(type);
      advance_to(after);
      return true;
    }
    return false;
  }

  static bool begins_channel(std::string_view word) {
    return std::ranges::any_of(kChannels,
                               [&](std::string_view name) { return name.starts_with(word); });
  }

  // The beginning of a header word at which the stream ended.
  bool is_begun_part(std::string_view rest) const {
    rest = trim(rest);
    if (!any_part_) return text_.starts_with(" t") && kTo.starts_with(rest);
    if (kTo.starts_with(rest)) return true;
    return out_.header.recipient && (std::string_view("json").starts_with(rest) ||
                                     std::string_view("code").starts_with(rest));
  }

  std::string_view text_;
  const bool cut_;
  size_t pos_ = 0;
  bool any_part_ = false;
  RepairedHeader out_;
};

bool has_odd_characters(std::string_view name) {
  if (name.find("<|") != std::string_view::npos) return true;
  if (name.find_first_of("\"'<>{}[]?!,") != std::string_view::npos) return true;
  for (size_t pos = 0; pos < name.size(); pos += decode_utf8(name, pos).size_bytes) {
    if (space_bytes(name, pos) > 0) return true;
  }
  return false;
}

bool is_misread_channel(const std::optional<std::string>& channel) {
  if (!channel || is_known_channel(*channel)) return false;
  return !damaged_channel(*channel).empty() || channel->find(kTo) != std::string::npos;
}

}  // namespace

bool is_known_channel(std::string_view word) {
  return std::ranges::find(kChannels, word) != kChannels.end();
}

StrictHeader parse_header_strictly(std::string_view text, std::optional<Role> role,
                                   bool whole_rest) {
  StrictHeader out;
  std::string without_channel(text);
  if (const size_t marker = text.find(kChannelMarker); marker != std::string_view::npos) {
    const size_t begin = marker + kChannelMarker.size();
    const size_t end = channel_end(text, begin);
    if (end == begin) return out;
    out.header.channel = std::string(text.substr(begin, end - begin));
    without_channel.erase(marker, end - marker);
  }
  const std::string spaced = spaced_before_markers(trim(without_channel));
  std::vector<std::string_view> words = ascii_words(trim(spaced));

  std::string_view tool_name;
  if (!role) {
    if (words.empty()) return out;
    tool_name = words.front();
    role = role_from_name(words.front());
    if (!role) {
      if (words.size() == 1 && !words.front().starts_with(kTo)) return out;
      words.erase(words.begin());
      role = Role::kTool;
    }
  }
  out.header.role = *role;
  if (*role == Role::kTool && !tool_name.empty()) out.header.name = std::string(tool_name);
  if (!words.empty() && words.front() == role_name(*role)) words.erase(words.begin());

  if (!whole_rest && !words.empty()) {
    const size_t num_words = words.size();
    const std::string_view last = words.back();
    words.pop_back();
    if (last.starts_with(kTo)) {
      out.header.recipient = std::string(last.substr(kTo.size()));
    } else if (num_words == 1) {
      out.header.recipient = std::string(last);
      out.bare_recipient = true;
    } else {
      out.header.content_type = std::string(last);
      const std::string_view before = words.back();
      words.pop_back();
      out.bare_recipient = !before.starts_with(kTo);
      out.header.recipient = std::string(before.substr(out.bare_recipient ? 0 : kTo.size()));
    }
    if (!words.empty()) return out;
  }
  for (const std::string_view word : words) {
    if (!out.rest.empty()) out.rest += ' ';
    out.rest += word;
  }
  out.ok = true;
  return out;
}

bool is_lone_content_type(const StrictHeader& strict) {
  if (!strict.ok || !strict.bare_recipient || strict.header.content_type) return false;
  if (is_misread_channel(strict.header.channel)) return false;
  const std::string& word = *strict.header.recipient;
  return is_plain_type(word) || (word.starts_with(kConstrainMarker) &&
                                 !looks_like_tool(word.substr(kConstrainMarker.size())));
}

bool is_misread(const StrictHeader& strict, const std::vector<std::string>& known_recipients) {
  const Header& header = strict.header;
  if (is_misread_channel(header.channel)) return true;
  if (header.recipient) {
    const std::string& name = *header.recipient;
    if (has_odd_characters(name) || name.starts_with("to:")) return true;
    if (strict.bare_recipient &&
        (is_plain_type(name) || is_known_channel(name) || role_from_name(name))) {
      return true;
    }
    if (!glued_type(name, known_recipients).empty()) return true;
  }
  if (header.content_type) {
    std::string_view type = *header.content_type;
    if (type.starts_with(kConstrainMarker)) type.remove_prefix(kConstrainMarker.size());
    if (has_odd_characters(type) || is_known_channel(type) || type.starts_with(kTo)) return true;
  }
  if (header.name) {
    const std::string& name = *header.name;
    if (has_odd_characters(name) || name.starts_with(kTo) || is_known_channel(name)) return true;
    if (name.find(':') != std::string::npos || role_from_name(lower(name))) {
      return role_from_name(lower(std::string_view(name).substr(0, name.find(':')))) &&
             name != "tool";
    }
  }
  return false;
}

RepairedHeader repair_header(std::string_view text, std::optional<Role> role, bool bare,
                             const std::vector<std::string>& known_recipients) {
  return HeaderRepair(text, known_recipients).run(role, bare);
}

RepairedHeader salvage_header(std::string_view text, std::optional<Role> role, bool bare,
                              bool cut) {
  return HeaderSalvage(text, cut).run(role, bare);
}

}  // namespace moxie::harmony
