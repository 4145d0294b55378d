// Commands and switches as data, collected from the declarations that parsing uses: shell
// completions (completions.cpp) and the manual page (man.cpp) are written from it, so that neither
// can lack what `--help` shows.
#pragma once

#include <string>
#include <vector>

#include "apps/cli.h"

namespace moxie {

/// What a switch's value is, for completions.
enum class Takes { kNothing, kText, kFile, kFolder, kModel };

/// What the text switch of this name takes, "--model"; kText if nothing is known of it.
Takes takes_of(const std::string& name);

struct Switch {
  std::string name;        ///< "--prompt"
  std::string short_name;  ///< "-p"; empty: none
  std::string type;        ///< as `--help` shows it, "INT"; empty: it takes no value
  std::string preset;      ///< the value where none is given; empty: none
  Takes takes = Takes::kText;
  std::vector<std::string> values;  ///< to choose from
  bool is_closed = false;           ///< `values` are all that it takes, not examples
  bool is_repeatable = false;
  std::string help;
};

struct CommandSwitches {
  const Command* command;
  std::string path;  ///< "harmony render"
  std::vector<Switch> switches;
  /// The name is empty if the command takes no words beside its switches.
  struct Positional {
    std::string name, help;
    bool required = false;
  } positional;

  const Switch* find(const std::string& name) const;
};

/// All commands, parents before their subcommands, in the order of `--help`.
std::vector<CommandSwitches> switches_of(const std::vector<Command>& commands);

/// The commands that walk the table; `commands` must outlive them, and may hold them.
Command completions_command(const std::vector<Command>* commands);
Command man_command(const std::vector<Command>* commands);
/// `moxie matrix`, which takes the names and values of switches from the table.
Command matrix_command(const std::vector<Command>* commands);

}  // namespace moxie
