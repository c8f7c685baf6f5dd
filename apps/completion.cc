// `switchyard completion`: completion scripts of shells. The scripts of deploy/completion read the
// commands from `switchyard --help=commands`, and their flags from `switchyard COMMAND
// --help=flags`, so they need no change for new flags.
#include <fmt/core.h>

#include "apps/commands.h"
#include "apps/completion_scripts.h"
#include "core/command_line.h"
#include "core/error.h"
#include "server/args/command_words.h"

namespace switchyard {

int RunCompletion(const std::vector<std::string>& words) {
  std::string shell;
  CommandLine app("Print the script that completes commands and flags in a shell",
                  "switchyard completion");
  app.Option("SHELL", shell, "bash, zsh or fish").OneOf({"bash", "zsh", "fish"}).Required();
  app.Footer(
      "bash: eval \"$(switchyard completion bash)\" in ~/.bashrc\n"
      "zsh:  switchyard completion zsh > DIR/_switchyard, where DIR is a directory of $fpath\n"
      "fish: switchyard completion fish > ~/.config/fish/completions/switchyard.fish\n"
      "The Debian package installs all three.");
  if (!ParseWords(app, words)) return 0;
  const char* const script = shell == "bash"  ? kBashCompletion
                             : shell == "zsh" ? kZshCompletion
                                              : kFishCompletion;
  fmt::print("{}", script);
  return 0;
}

}  // namespace switchyard
