// The `moxie` binary.
#include "apps/cli.h"
#include "apps/op.h"
#include "apps/switches.h"

int main(int argc, char** argv) {
  using namespace moxie;
  std::vector<Command> commands = {run_command(),      chat_command(),       score_command(),
                                   tokenize_command(), detokenize_command(), harmony_command(),
                                   inspect_command(),  kernels_command(),    plan_command(),
                                   doctor_command(),   bench_command(),      profile_command(),
                                   eval_command(),     serve_command(),      pull_command(),
                                   op_command(),       validate_command(),   tune_command()};
  commands.push_back(matrix_command(&commands));
  commands.push_back(completions_command(&commands));
  commands.push_back(man_command(&commands));
  return run_commands(argc, argv, commands);
}
