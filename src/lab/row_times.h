// Times of the rows that a launch of the model runs, one after another: on the CPU by the host's
// clock around each row, on CUDA by events of the device behind each row.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/engine.h"

namespace moxie {

struct RowTime {
  const OpInfo* op;
  const char* row;
  double us;
};

class RowTimer {
 public:
  static Result<std::unique_ptr<RowTimer>> make(Engine& engine);
  virtual ~RowTimer() = default;
  /// Runs `launch`, which launches the model once or more, and waits for it. The engine must be
  /// idle before.
  virtual Result<std::vector<RowTime>> time(const std::function<Status()>& launch) = 0;
};

}  // namespace moxie
