// The forms in which steps hand values over at the borders between them.
//
// A value has one form at a border. A row declares the forms that it takes and leaves (RowForms).
// The plan of a pass (kernels/plan.h) chooses one for each border, so that no row needs to know its
// neighbours.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace moxie {

/// The residual stream. kF32: one float a value. kF32Pair, on CUDA: the value is the sum of two
/// floats, to which many blocks can add in any order (kernels/residual.cuh).
enum class XForm : uint8_t { kF32, kF32Pair };
/// Queries, from qkv to attend. kBf16Staged: BF16, already times AttendParams::q_factor.
enum class QForm : uint8_t { kF32, kBf16Staged };
/// Attention's outputs, from attend to out. kBf16Staged: BF16 as gemm/staged.cuh stages it.
enum class AForm : uint8_t { kF32, kBf16Staged };
/// What out leaves for the route step: nothing, or (kSums) the router's products with out's
/// outputs, the sums of their squares, and the experts' activations (RouteFold).
enum class RouterForm : uint8_t { kNothing, kSums };
/// The experts' input, from route to experts. kF32: normed; kAbsent: experts norms x itself.
enum class TForm : uint8_t { kF32, kAbsent };
/// Who adds the parts of x that ranks on GPUs have behind out and experts. kStep: the step reduce,
/// behind each. kFolded, one token: the rows that read x, each from x and the parts (ReduceFold);
/// every row of a plan passes the form on unchanged. kRounded, x of one float a value: the step
/// reduce, of what out leaves in BF16, and of the outputs of experts' pairs (PairOutputs). kSent,
/// two ranks, x of two floats a value: the step reduce, of what out leaves in BF16, and of what
/// experts add to. Between two ranks out itself stores what it leaves in BF16 into the other's
/// memory, too.
enum class ReduceForm : uint8_t { kStep, kFolded, kRounded, kSent };
/// Whether out leaves its part in BF16.
constexpr bool leaves_rounded(ReduceForm form) {
  return form == ReduceForm::kRounded || form == ReduceForm::kSent;
}
/// How the kernels of a chain divide an SM's memory, CUDA. kShared: all of it is shared memory, for
/// kernels that copy weights there. kL1: more than half is L1, for kernels that load weights
/// straight to registers (gemv/held_units.cuh). Kernels that differ in this cannot run side by
/// side, so every row passes the form on unchanged.
enum class L1Form : uint8_t { kShared, kL1 };

inline constexpr const char* kXFormNames[] = {"f32", "f32_pair"};
inline constexpr const char* kQFormNames[] = {"f32", "bf16_staged"};
inline constexpr const char* kAFormNames[] = {"f32", "bf16_staged"};
inline constexpr const char* kRouterFormNames[] = {"nothing", "sums"};
inline constexpr const char* kTFormNames[] = {"f32", "absent"};
inline constexpr const char* kL1FormNames[] = {"shared", "l1"};

/// A set of forms of one value.
template <typename Form>
class FormSet {
 public:
  constexpr FormSet(std::initializer_list<Form> forms) {
    for (const Form form : forms) add(form);
  }
  constexpr void add(Form form) { bits_ |= 1u << static_cast<unsigned>(form); }
  constexpr bool has(Form form) const { return (bits_ >> static_cast<unsigned>(form) & 1u) != 0; }
  /// The first form of the set, or the second of all.
  constexpr Form first() const { return has(Form{0}) ? Form{0} : Form{1}; }

 private:
  unsigned bits_ = 0;
};

/// One form for each value that a layer's steps hand over.
struct Forms {
  XForm x = XForm::kF32;
  QForm q = QForm::kF32;
  AForm a = AForm::kF32;
  RouterForm router = RouterForm::kNothing;
  TForm t = TForm::kF32;
  L1Form l1 = L1Form::kShared;
  ReduceForm reduce = ReduceForm::kStep;
  friend bool operator==(const Forms&, const Forms&) = default;
};

/// The forms that a row takes and leaves, for the values that its steps read and write.
struct RowForms {
  FormSet<XForm> x{XForm::kF32};
  FormSet<QForm> q{QForm::kF32};
  FormSet<AForm> a{AForm::kF32};
  FormSet<RouterForm> router{RouterForm::kNothing};
  FormSet<TForm> t{TForm::kF32};
  FormSet<L1Form> l1{L1Form::kShared};
  FormSet<ReduceForm> reduce{ReduceForm::kStep};
};

}  // namespace moxie
