// The o200k splitter: cuts text into the pieces inside which BPE merges. It matches, leftmost
// alternative first, the regular expression of o200k_base and o200k_harmony:
//
//   1
//   [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?
//   2
//   [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?
//   3  \p{N}{1,3}        4   ?[^\s\p{L}\p{N}]+[\r\n/]*
//   5  \s*[\r\n]+        6  \s+(?!\S)        7  \s+
//
// Every character starts a match, so pieces tile the text. Work is linear in the text: no byte is
// looked at more than a few times, whatever the input. A byte that is not part of well-formed UTF-8
// counts as one character that is no letter, mark, number or space.
#pragma once

#include <cstddef>
#include <string_view>

namespace moxie {

/// The end (one past the last byte) of the piece that starts at text[start]; start < text.size(),
/// and start is where a piece may begin (0, or an end returned before). The end of `text` counts as
/// the end of the input in alternative 6, so pass the whole text between two special tokens.
size_t piece_end(std::string_view text, size_t start);

}  // namespace moxie
