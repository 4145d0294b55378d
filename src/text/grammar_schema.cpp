// Writes merged schemas as rules: one rule for each conjunction of schemas, made once, so that
// recursive schemas become recursive rules.
#include "text/grammar_schema.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "text/grammar_schema_node.h"
#include "text/harmony_json.h"
#include "text/utf8.h"

namespace moxie::grammar {
namespace {

constexpr size_t kMaxSchemaBytes = 512 * 1024;
constexpr size_t kMaxExprs = 60'000;
constexpr size_t kMaxEbnfBytes = 128 * 1024;  // each takes some 35 microseconds of compiling
constexpr int64_t kMaxOptionalKeys = 256;     // of one object: each may follow each before it
constexpr size_t kMaxEnumValues = 2'000;
constexpr int64_t kMaxCountedKeys = 256;
constexpr int kMaxIndent = 64;  // white space at the beginning of a line

/// The grammar of JSON that does not depend on a schema.
class JsonRules {
 public:
  JsonRules(Rules& rules, bool compact) : rules_(rules) {
    gap_ = compact ? rules.empty() : make_gap();
    colon_ = compact ? rules.text(":")
                     : rules.sequence({rules.text(":"), rules.optional(rules.text(" "))});
    escape_ = make_escape();
    make_string();
  }

  ExprId gap() const { return gap_; }
  ExprId colon() const { return colon_; }
  ExprId string() const { return string_; }
  ExprId escape() const { return escape_; }
  ExprId null() { return rules_.text("null"); }
  ExprId boolean() { return rules_.choice({rules_.text("true"), rules_.text("false")}); }

  ExprId any() {
    make_any();
    return rules_.ref(any_rule_);
  }
  ExprId object() {
    make_any();
    return object_;
  }
  ExprId list(ExprId first, ExprId rest, const char* open, const char* close) {
    return rules_.sequence({rules_.text(open), gap_, first, rest, gap_, rules_.text(close)});
  }

 private:
  ExprId make_gap() {
    const auto line = [&](uint32_t indent, int least, int most) {
      return rules_.sequence(
          {rules_.text("\n"), rules_.repeat(rules_.one_of({{indent, indent}}), least, most)});
    };
    return rules_.shared(rules_.choice(
        {rules_.empty(), rules_.text(" "), line(' ', 0, kMaxIndent), line('\t', 1, 16)}));
  }

  ExprId make_escape() {
    const auto hex = [&](int32_t n) {
      return rules_.repeat(rules_.one_of({{'0', '9'}, {'A', 'F'}, {'a', 'f'}}), n, n);
    };
    const auto of = [&](const CharSet& set) { return rules_.one_of(set); };
    const CharSet d = {{'D', 'D'}, {'d', 'd'}};
    const ExprId plain =
        rules_.sequence({of({{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}}), hex(3)});
    const ExprId below = rules_.sequence({of(d), of({{'0', '7'}}), hex(2)});
    // Surrogate halves come in pairs only: many parsers refuse a lone one.
    const ExprId pair =
        rules_.sequence({of(d), of({{'8', '9'}, {'A', 'B'}, {'a', 'b'}}), hex(2),
                         rules_.text("\\u"), of(d), of({{'C', 'F'}, {'c', 'f'}}), hex(2)});
    return rules_.shared(rules_.sequence(
        {rules_.text("\\"),
         rules_.choice(
             {rules_.one_of({{'"', '"'},
                             {'/', '/'},
                             {'\\', '\\'},
                             {'b', 'b'},
                             {'f', 'f'},
                             {'n', 'n'},
                             {'r', 'r'},
                             {'t', 't'}}),
              rules_.sequence({rules_.text("u"), rules_.choice({plain, below, pair})})})}));
  }

  void make_string() {
    // Right recursive with the quote inside: the form whose masks xgrammar precomputes best.
    const RuleId rest = rules_.add_rule();
    rules_.define(
        rest, rules_.choice({rules_.text("\""),
                             rules_.sequence({rules_.one_of(unescaped_chars()), rules_.ref(rest)}),
                             rules_.sequence({escape_, rules_.ref(rest)})}));
    rules_.set_lookahead(
        rest,
        rules_.sequence({gap_, rules_.one_of({{',', ','}, {':', ':'}, {']', ']'}, {'}', '}'}})}));
    string_ = rules_.sequence({rules_.text("\""), rules_.ref(rest)});
  }

  void make_any() {
    if (any_rule_ >= 0) return;
    any_rule_ = rules_.add_rule();
    const ExprId any = rules_.ref(any_rule_);
    const ExprId member = rules_.shared(rules_.sequence({string_, colon_, any}));
    const auto more = [&](ExprId item) {
      return rules_.repeat(rules_.sequence({rules_.text(","), gap_, item}), 0, kUnbounded);
    };
    object_ =
        rules_.shared(rules_.choice({list(member, more(member), "{", "}"), rules_.text("{}")}));
    const ExprId array =
        rules_.shared(rules_.choice({list(any, more(any), "[", "]"), rules_.text("[]")}));
    const auto number = number_expr(rules_, {}, "");
    CHECK(number.has_value());
    rules_.define(any_rule_, rules_.choice({object_, array, string_, *number, boolean(), null()}));
  }

  Rules& rules_;
  ExprId gap_ = 0, colon_ = 0, escape_ = 0, string_ = 0, object_ = 0;
  RuleId any_rule_ = -1;
};

class SchemaWriter {
 public:
  SchemaWriter(const Json& root, const std::string& where, bool compact)
      : where_(where), reader_(root, where), json_(rules_, compact) {}

  Result<Translation> write(const Json& root) {
    if (!reader_.check()) return fail(reader_.error());
    const RuleId rule = rules_.add_rule();
    rules_.define(rule, value({&root}));
    while (!pending_.empty()) {
      const auto [conjunction, id] = pending_.front();
      pending_.pop_front();
      define(id, conjunction);
      if (rules_.num_exprs() > kMaxExprs) {
        reader_.report(nullptr,
                       "it makes a grammar of more than " + std::to_string(kMaxExprs) + " parts");
        break;
      }
    }
    if (reader_.has_faults()) return fail(reader_.error());
    std::string ebnf = rules_.ebnf(rule);
    if (ebnf.empty()) {
      return fail("no value can hold against the schema, or none that ends", where_,
                  "look for bounds that exclude one another, and for a $ref to itself that is "
                  "required at every level");
    }
    if (ebnf.size() > kMaxEbnfBytes) {
      return fail("the schema makes a grammar of " + std::to_string(ebnf.size()) + " bytes", where_,
                  "at most " + std::to_string(kMaxEbnfBytes) + " are supported");
    }
    return Translation{std::move(ebnf), std::move(counted_)};
  }

 private:
  ExprId value(Conjunction conjunction) {
    std::sort(conjunction.begin(), conjunction.end());
    conjunction.erase(std::unique(conjunction.begin(), conjunction.end()), conjunction.end());
    if (conjunction.empty()) return json_.any();
    const auto it = known_.find(conjunction);
    if (it != known_.end()) return rules_.ref(it->second);
    const RuleId rule = rules_.add_rule();
    known_.emplace(conjunction, rule);
    pending_.emplace_back(std::move(conjunction), rule);
    return rules_.ref(rule);
  }

  void define(RuleId rule, const Conjunction& conjunction) {
    at_ = conjunction.front();
    std::vector<ExprId> ways;
    for (const Node& node : reader_.alternatives(conjunction)) ways.push_back(node_expr(node));
    rules_.define(rule, rules_.choice(std::move(ways)));
  }

  ExprId node_expr(const Node& node) {
    if (node.values) return values(node);
    const unsigned types = node.generated_types();
    if (types == kAllTypes && node.hinted_types == 0) return json_.any();
    std::vector<ExprId> ways;
    if (types & kObject) ways.push_back(object(node));
    if (types & kArray) ways.push_back(array(node));
    if (types & kString) ways.push_back(string(node));
    if (types & kNumber) {
      ways.push_back(number(number_expr(rules_, node.numbers, where_)));
    } else if (types & kInteger) {
      ways.push_back(number(integer_expr(rules_, node.numbers, where_)));
    }
    if (types & kBoolean) ways.push_back(json_.boolean());
    if (types & kNull) ways.push_back(json_.null());
    return rules_.choice(std::move(ways));
  }

  ExprId number(const Result<ExprId>& expr) {
    if (expr) return *expr;
    reader_.report(at_, expr.error().what);
    return rules_.never();
  }

  ExprId values(const Node& node) {
    if (node.values->size() > kMaxEnumValues) {
      reader_.report(at_, "enum with more than " + std::to_string(kMaxEnumValues) + " values");
      return rules_.never();
    }
    Node rest = node;
    rest.values.reset();
    std::vector<ExprId> ways;
    for (const Json& value : *node.values) {
      if (reader_.holds(value, rest)) ways.push_back(rules_.text(value.dump()));
    }
    return rules_.choice(std::move(ways));
  }

  ExprId string(const Node& node) {
    if (node.patterns.empty()) {
      if (node.min_length == 0 && node.max_length == kUnbounded) return json_.string();
      return counted({string_chars(), node.min_length, node.max_length, {}});
    }
    if (node.patterns.size() > 1) {
      reader_.report(at_,
                     "two patterns (or a pattern and a format) for one string are not supported");
      return rules_.never();
    }
    const auto regex = with_length(node.patterns.begin()->second, node.min_length, node.max_length);
    if (!regex) {
      reader_.report(at_,
                     "minLength or maxLength beside this pattern or format is not supported: "
                     "put the counts into the pattern");
      return rules_.never();
    }
    const auto& [name, original] = *node.patterns.begin();
    return pattern(*regex, *regex == original && name.rfind("format ", 0) == 0);
  }

  /// `is_format`: a pattern of grammar_format.h; these are few and not too large.
  ExprId pattern(const RegexPtr& regex, bool is_format = false) {
    const bool repeats = regex->kind == RegexNode::Kind::kRepeat;
    if (repeats && regex->parts[0]->kind == RegexNode::Kind::kOneOf) {
      return counted(
          {intersection(regex->parts[0]->set, string_chars()), regex->min, regex->max, {}});
    }
    const auto [it, is_first] = patterns_.emplace(regex, rules_.never());
    if (!is_first) return it->second;
    if (!is_format) pattern_cost_ += mask_cost(regex);
    if (pattern_cost_ > kMaxMaskCost) {
      reader_.report(at_,
                     "the counts in patterns are too large: only a class alone, like "
                     "^[a-z]{1,500}$, may be counted far");
      return rules_.never();
    }
    it->second = rules_.shared(quoted(regex_expr(rules_, regex, CharEncoding::kJsonString)));
    return it->second;
  }

  /// A counted string (grammar_counted.h).
  ExprId counted(const CountedString& bounds) {
    if (bounds.max == 0 || (bounds.set.empty() && bounds.min == 0)) return rules_.text("\"\"");
    if (bounds.set.empty()) return rules_.never();
    auto it = std::find(counted_.begin(), counted_.end(), bounds);
    if (it == counted_.end()) {
      if (counted_.size() >= kMaxCounted) {
        reader_.report(at_,
                       "more than " + std::to_string(kMaxCounted) + " different bounds of strings");
        return rules_.never();
      }
      it = counted_.insert(it, bounds);
    }
    std::string mark;
    append_utf8(kFirstMark + static_cast<uint32_t>(it - counted_.begin()), &mark);
    return quoted(rules_.text(mark));
  }
  ExprId quoted(ExprId inside) {
    return rules_.sequence({rules_.text("\""), inside, rules_.text("\"")});
  }

  ExprId array(const Node& node) {
    const auto num_prefix = static_cast<int64_t>(node.num_prefix_items());
    int64_t max = node.max_items;
    // A tuple whose schema does not mention further items is closed, unless minItems asks for more.
    if (num_prefix > 0 && !node.has_items() && node.min_items <= num_prefix) {
      max = max == kUnbounded ? num_prefix : std::min(max, num_prefix);
    }
    const auto comma = [&](ExprId item) {
      return rules_.sequence({rules_.text(","), json_.gap(), item});
    };
    const ExprId item = value(node.items_at(node.num_prefix_items()));
    const int64_t written = std::max<int64_t>(num_prefix, 1);
    // From the back: the text that may follow the first n items, without separator and bracket.
    const int32_t tail_min = static_cast<int32_t>(std::max<int64_t>(0, node.min_items - written));
    const int32_t tail_max =
        max == kUnbounded ? kUnbounded : static_cast<int32_t>(std::max<int64_t>(0, max - written));
    ExprId rest = rules_.repeat(comma(item), tail_min, tail_max);
    for (int64_t n = num_prefix; n-- > 1;) {
      const ExprId next = comma(value(node.items_at(static_cast<size_t>(n))));
      ExprId more = max != kUnbounded && n >= max ? rules_.never() : rules_.sequence({next, rest});
      if (n >= node.min_items) more = rules_.optional(more);
      rest = rules_.shared(more);
    }
    const ExprId empty = node.min_items == 0 ? rules_.text("[]") : rules_.never();
    if (max == 0) return empty;
    return rules_.choice({json_.list(value(node.items_at(0)), rest, "[", "]"), empty});
  }

  // ---- objects ----

  struct Member {
    ExprId expr;
    bool required;
  };

  ExprId member(ExprId key, ExprId value) { return rules_.sequence({key, json_.colon(), value}); }

  /// A name that is not among `keys`.
  ExprId other_name(std::vector<std::string> keys) {
    if (keys.empty()) return json_.string();
    std::sort(keys.begin(), keys.end());
    return counted({string_chars(), 0, kUnbounded, std::move(keys)});
  }

  /// The member that may follow the declared ones any number of times; never() where there is none.
  ExprId extra_member(const Node& node, const std::vector<std::string>& keys) {
    std::vector<std::pair<RegexPtr, const Json*>> patterns;
    for (const ObjectPart& part : node.objects) {
      patterns.insert(patterns.end(), part.patterns.begin(), part.patterns.end());
    }
    const auto additional = node.additional();
    if (patterns.empty()) {
      if (!additional) return rules_.never();
      if (node.names.empty()) return member(other_name(keys), value(*additional));
      if (!keys.empty()) {
        reader_.report(at_, "propertyNames beside declared properties is not supported");
        return rules_.never();
      }
      std::vector<ExprId> ways;
      for (Node& name : names_of(node.names)) ways.push_back(node_expr(name));
      return member(rules_.shared(rules_.choice(std::move(ways))), value(*additional));
    }
    // A pattern that unevaluatedProperties does not see is not supported, like one in allOf.
    const auto& unevaluated = node.unevaluated_properties;
    const bool alone = node.objects.size() == 1 &&
                       std::none_of(unevaluated.begin(), unevaluated.end(),
                                    [](const UnevaluatedPart& part) { return part.seen.empty(); });
    if (additional || !node.names.empty() || patterns.size() > 1 || !alone) {
      reader_.report(at_, patterns.size() > 1
                              ? "more than one pattern in patternProperties is not supported"
                              : "patternProperties is supported with additionalProperties or "
                                "unevaluatedProperties false (or absent) beside it, without "
                                "propertyNames and outside allOf");
      return rules_.never();
    }
    for (const std::string& key : keys) {
      if (matches(patterns[0].first, key)) {
        reader_.report(at_,
                       "patternProperties whose pattern also matches the declared property \"" +
                           key.substr(0, 60) + "\" is not supported");
        return rules_.never();
      }
    }
    return member(pattern(patterns[0].first), value({patterns[0].second}));
  }

  std::vector<Node> names_of(const Conjunction& schemas) {
    std::vector<Node> nodes = reader_.alternatives(schemas);
    for (Node& node : nodes) {
      node.types &= unsigned{kString};
      node.has_type = true;
    }
    return nodes;
  }

  ExprId object(const Node& node) {
    const std::vector<std::string> keys = node.declared_keys();
    const bool counts = std::max(node.min_properties, node.max_properties) <= kMaxCountedKeys;
    if (keys.size() > kMaxKeys || !counts) {
      reader_.report(at_, "more than " + std::to_string(kMaxKeys) +
                              " properties, or minProperties or maxProperties above " +
                              std::to_string(kMaxCountedKeys));
      return rules_.never();
    }
    std::vector<Member> members;
    for (const std::string& key : keys) {
      const auto schemas = node.schemas_of(key);
      const bool named = node.names.empty() || reader_.holds(Json(key), node.names);
      const bool required = node.requires_key(key);
      ExprId expr = rules_.never();
      if (schemas && named) {
        expr = rules_.shared(member(rules_.text(Json(key).dump()), value(*schemas)));
      }
      members.push_back({expr, required});
    }
    const ExprId extra = extra_member(node, keys);
    const auto num_required = static_cast<int64_t>(node.required.size());
    if (static_cast<int64_t>(keys.size()) - num_required > kMaxOptionalKeys) {
      reader_.report(at_, "more than " + std::to_string(kMaxOptionalKeys) +
                              " properties that are not required");
      return rules_.never();
    }
    const int64_t min = node.min_properties <= num_required ? 0 : node.min_properties;
    if (min > 1 && extra != rules_.never()) {
      reader_.report(at_,
                     "minProperties above 1 is supported only where all names are declared: a "
                     "grammar cannot tell repeated names");
      return rules_.never();
    }
    return rules_.sequence({rules_.text("{"),
                            Body(*this, std::move(members), extra, min, node.max_properties).expr(),
                            rules_.text("}")});
  }

  /// The members of an object in order, counted as far as the bounds need it.
  class Body {
   public:
    Body(SchemaWriter& writer, std::vector<Member> members, ExprId extra, int64_t min, int64_t max)
        : rules_(writer.rules_),
          gap_(writer.json_.gap()),
          members_(std::move(members)),
          extra_(extra),
          min_(min),
          max_(max),
          cap_(std::max<int64_t>({1, min, max == kUnbounded ? 0 : max})) {}

    ExprId expr() { return from(0, 0); }

   private:
    /// The text that may follow when members before `idx` are decided and `num` (at most cap_) of
    /// them are written.
    ExprId from(size_t idx, int64_t num) {
      const auto key = std::make_pair(idx, num);
      if (const auto it = known_.find(key); it != known_.end()) return rules_.ref(it->second);
      if (rules_.num_exprs() > kMaxExprs) return rules_.never();  // reported once the rule is done
      const RuleId rule = rules_.add_rule();
      known_.emplace(key, rule);
      const bool full = max_ != kUnbounded && num >= max_;
      const auto write = [&](ExprId member, size_t next) {
        if (full) return rules_.never();
        const ExprId comma = num > 0 ? rules_.text(",") : rules_.empty();
        return rules_.sequence({comma, gap_, member, from(next, std::min(cap_, num + 1))});
      };
      std::vector<ExprId> ways;
      if (idx < members_.size()) {
        ways.push_back(write(members_[idx].expr, idx + 1));
        if (!members_[idx].required) ways.push_back(from(idx + 1, num));
      } else {
        if (extra_ != rules_.never()) ways.push_back(write(extra_, idx));
        if (num >= min_) ways.push_back(num > 0 ? gap_ : rules_.empty());
      }
      rules_.define(rule, rules_.choice(std::move(ways)));
      return rules_.ref(rule);
    }

    Rules& rules_;
    ExprId gap_;
    std::vector<Member> members_;
    ExprId extra_;
    int64_t min_, max_, cap_;
    std::map<std::pair<size_t, int64_t>, RuleId> known_;
  };

  const std::string& where_;
  Rules rules_;
  SchemaReader reader_;
  JsonRules json_;
  std::vector<CountedString> counted_;
  std::map<RegexPtr, ExprId> patterns_;
  int64_t pattern_cost_ = 0;  // of all of them
  const Json* at_ = nullptr;  // for faults: the schema being written
  std::map<Conjunction, RuleId> known_;
  std::deque<std::pair<Conjunction, RuleId>> pending_;
};

}  // namespace

Result<Translation> translate_schema(std::string_view schema_json, const std::string& where,
                                     bool compact) {
  if (schema_json.size() > kMaxSchemaBytes) {
    return fail("a schema of " + std::to_string(schema_json.size()) + " bytes", where,
                "at most " + std::to_string(kMaxSchemaBytes) + " are supported");
  }
  auto root = harmony::parse_json_bounded(schema_json, where);
  if (!root) return fail(root.error());
  if (!(*root)->is_object() && !(*root)->is_boolean()) {
    return fail("a schema must be a JSON object", where);
  }
  return SchemaWriter(**root, where, compact).write(**root);
}

Translation any_json_object(bool compact) {
  Rules rules;
  JsonRules json(rules, compact);
  const RuleId root = rules.add_rule();
  rules.define(root, json.object());
  return {rules.ebnf(root), {}};
}

Result<Translation> translate_regex(std::string_view pattern, const std::string& where) {
  auto regex = parse_regex(pattern, where);
  if (regex) regex = resolve_anchors(*regex, RegexMode::kWhole, where);
  if (!regex) return fail(regex.error());
  if (mask_cost(*regex) > kMaxMaskCost) {
    return fail("the pattern's counts are too large", where,
                "use fewer repeats, or smaller classes");
  }
  Rules rules;
  const RuleId root = rules.add_rule();
  rules.define(root, regex_expr(rules, *regex, CharEncoding::kPlain));
  std::string ebnf = rules.ebnf(root);
  if (ebnf.empty()) return fail("no text matches the pattern", where);
  return Translation{std::move(ebnf), {}};
}

}  // namespace moxie::grammar
