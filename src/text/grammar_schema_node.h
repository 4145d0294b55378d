// JSON Schema read into alternatives. Each is a plain list of conditions that must all hold, with
// $ref, allOf, anyOf, oneOf and neighbouring keywords merged. Keywords that these conditions cannot
// express are reported, never silently ignored.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "text/grammar_number.h"
#include "text/grammar_regex.h"
#include "text/grammar_schema_valid.h"

namespace moxie::grammar {

/// Schemas inside one document, all of which must hold; none: anything goes.
using Conjunction = std::vector<const Json*>;

/// Limits for one object; both also bound the depth of recursion when it is written.
constexpr size_t kMaxKeys = 1'000;
constexpr size_t kMaxKeyBytes = 512;

enum TypeBits : unsigned {
  kNull = 1,
  kBoolean = 2,
  kInteger = 4,
  kNumber = 8,  ///< whole numbers too
  kString = 16,
  kArray = 32,
  kObject = 64,
  kAllTypes = 127,
};

/// The object keywords of one schema: `additional` counts against its own names only.
struct ObjectPart {
  const Json* schema = nullptr;
  const Json* properties = nullptr;
  std::vector<std::pair<RegexPtr, const Json*>> patterns;  ///< resolved
  const Json* additional = nullptr;

  bool evaluates(const std::string& key) const;
};

struct ArrayPart {
  const Json* schema = nullptr;
  std::vector<const Json*> prefix;
  const Json* items = nullptr;

  bool evaluates(size_t idx) const { return idx < prefix.size() || items != nullptr; }
};

/// unevaluatedProperties or unevaluatedItems of one schema: applies to members that no keyword it
/// sees evaluates. It sees its own schema's keywords and those of schemas in its place ($ref,
/// allOf, the branch of anyOf and oneOf that this alternative took), not those beside its schema.
struct UnevaluatedPart {
  const Json* schema = nullptr;
  std::vector<size_t> seen;  ///< places in Node::objects or Node::arrays
};

/// What the alternatives are used for.
enum class Reading : uint8_t {
  kWritten,  ///< for generating; the branches of oneOf are proven to exclude one another
  kAssumed,  ///< the same inside a proof: oneOf is assumed to be proven
  kLoose,    ///< inside a proof: admits at least all valid values
};

/// One alternative. Keywords bind only values of their own type, as everywhere in JSON Schema.
struct Node {
  Reading reading = Reading::kWritten;
  unsigned types = kAllTypes;
  bool has_type = false;                    ///< a type (or values) was given
  unsigned hinted_types = 0;                ///< types that keywords apply to
  std::optional<std::vector<Json>> values;  ///< enum and const, not yet checked against the rest
  NumberRange numbers;
  bool unsatisfiable = false;

  int64_t min_length = 0, max_length = kUnbounded;
  std::map<std::string, RegexPtr> patterns;  ///< resolved; formats too, by their name
  std::vector<ArrayPart> arrays;
  std::vector<UnevaluatedPart> unevaluated_items;
  int64_t min_items = 0, max_items = kUnbounded;
  std::vector<ObjectPart> objects;
  std::vector<UnevaluatedPart> unevaluated_properties;
  std::vector<std::string> required;
  Conjunction names;  ///< propertyNames
  int64_t min_properties = 0, max_properties = kUnbounded;

  /// The types to generate: without a type, those that the keywords apply to (all if none).
  unsigned generated_types() const;
  bool requires_key(const std::string& key) const;
  std::vector<std::string> declared_keys() const;  ///< in order, required ones without schema last
  /// The schemas for a key, declared or else additional; none if the key is not allowed.
  std::optional<Conjunction> schemas_of(const std::string& key) const;
  /// The schemas for undeclared names. None: such names are not written (also if names are declared
  /// and no keyword mentions others).
  std::optional<Conjunction> additional() const;
  Conjunction items_at(size_t idx) const;
  size_t num_prefix_items() const;
  bool has_items() const;
};

class SchemaReader {
 public:
  /// `root` must outlive the reader.
  SchemaReader(const Json& root, std::string where)
      : root_(&root), where_(std::move(where)), checker_(root), faults_(root) {}

  /// Whether the document is a JSON Schema, which the functions below require.
  bool check() { return checker_.check(*root_); }

  /// The alternatives; empty if no value is valid or faults were reported.
  std::vector<Node> alternatives(const Conjunction& schemas, Reading reading = Reading::kWritten);

  /// Whether `value` is valid under the schemas. Exact for supported keywords, except for
  /// unevaluated members that only two branches of an anyOf together evaluate: false for kWritten,
  /// true for kLoose.
  bool holds(const Json& value, const Conjunction& schemas, Reading reading = Reading::kWritten);
  bool holds(const Json& value, const Node& node);

  /// A fault at a place in the document; the first ones are kept.
  void report(const Json* at, const std::string& what) { faults_.report(at, what); }
  bool has_faults() const { return !faults_.empty() || !checker_.faults().empty(); }
  Error error() const;

 private:
  struct Pending;
  bool spend(size_t num_steps);  ///< false, with a fault reported, once the total work is too much
  RegexPtr regex_of(const Json* at, std::string_view pattern, RegexMode mode, const char* keyword);
  bool pattern_holds(const RegexPtr& regex, std::string_view text);
  void add(const Json* schema, std::vector<const Json*> chain, Pending* pending);
  void expand(Pending pending, Reading reading, std::vector<Node>* out);
  void check_one_of(const Json& options, size_t taken, const Node& node);
  const Json* resolve_ref(const Json& schema);
  Node merged(const Pending& pending);
  template <typename Part>
  std::vector<UnevaluatedPart> unevaluated(const Pending& pending, const std::vector<Part>& parts,
                                           const char* key);

  void read_keyword(const Json& schema, const std::string& key, const Json& value, Node* node);
  bool read_count(const Json& schema, const std::string& key, const Json& value, Node* node);
  void read_required(const Json& schema, const Json& value, Node* node);
  void read_type(const Json& schema, Node* node);
  void read_values(const Json& schema, std::vector<Json> values, Node* node);
  void read_number(const Json& schema, const std::string& key, const Json& value, Node* node);
  void read_format(const Json& schema, const Json& value, Node* node);
  void read_pattern(const Json& schema, const Json& value, Node* node);
  void read_array(const Json& schema, Node* node);
  void read_object(const Json& schema, Node* node);
  int64_t count(const Json& schema, const std::string& key, const Json& value);

  /// Whether no value generated for `a` is valid under `b`.
  bool excludes(const Node& a, const Node& b, int depth);
  bool excludes_object(const Node& a, const Node& b, int depth);
  bool excludes_array(const Node& a, const Node& b, int depth);
  bool disjoint(const Conjunction& a, const Conjunction& b, int depth);

  const Json* root_;
  std::string where_;
  SchemaChecker checker_;
  SchemaFaults faults_;
  std::map<std::pair<const Json*, std::string>, RegexPtr> regexes_;  // null: not supported
  std::map<const Json*, std::vector<Node>> loose_;                   // of branches of oneOf
  size_t num_steps_ = 0;  // bounds the work that small documents can ask for
};

}  // namespace moxie::grammar
