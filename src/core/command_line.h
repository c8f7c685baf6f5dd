// Command-line parsing. Only command_line.cc includes CLI11, whose headers and templates take 9 to
// 14 s of compilation in every object file that uses them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace switchyard {

// The variable that parsing assigns to, of one of the listed types. It holds the default before
// parsing and outlives the CommandLine.
class FlagTarget {
 public:
  using Pointer =
      std::variant<std::string*, std::filesystem::path*, int32_t*, int64_t*, uint64_t*, float*,
                   double*, std::vector<std::string>*, std::vector<int32_t>*, std::vector<int64_t>*,
                   std::optional<uint64_t>*, std::optional<double>*>;

  template <typename T>
  requires std::is_constructible_v<Pointer, T*> FlagTarget(T& target)
      : pointer_(&target) {}  // NOLINT(google-explicit-constructor)

  const Pointer& pointer() const { return pointer_; }

 private:
  Pointer pointer_;
};

// Handle of an option of a CommandLine, to add checks of the value and to set the help. Valid as
// long as the CommandLine. Checks apply to each value of a vector; their errors name the option.
class FlagHandle {
 public:
  explicit FlagHandle(CLI::Option* option) : option_(option) {}

  FlagHandle Range(int least, int most);        // bounds included
  FlagHandle Range(double least, double most);  // bounds included; like the next two, refuses nan
  FlagHandle Positive();
  FlagHandle NonNegative();
  FlagHandle OneOf(std::initializer_list<const char*> values);
  FlagHandle ExistingFile();
  FlagHandle Required();
  FlagHandle Group(const char* group);  // heading in the help; "": hidden
  FlagHandle ShowDefault();             // in the help: the target's present value
  FlagHandle OptionalValue();           // for strings: without a value, the target becomes empty
  FlagHandle TakeLast();                // may be given several times; the last value counts

 private:
  CLI::Option* option_;
};

// The options of one command. `names` are separated by commas. A name without dashes is a
// positional argument. A switch's name such as !--no-x sets false. One thread at a time.
class CommandLine {
 public:
  // `name`: the command as users type it, for error messages. If it is empty, ParseMain uses
  // argv[0].
  explicit CommandLine(const std::string& description, const std::string& name = {});
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // Adds an option that may be given once. The help lists it in the group "Options" without its
  // default. A vector takes several values.
  FlagHandle Option(const char* names, FlagTarget target, const std::string& help = {});

  // Like Option, but the help lists it in `group` with its default, and the last value counts
  // (TakeLast). So the command line overrides --config.
  FlagHandle Flag(const char* names, FlagTarget target, const char* group, const std::string& help);

  // Takes no value (--switch=false sets false); may be given several times, the last one counts.
  FlagHandle Switch(const char* names, bool& target, const char* group, const std::string& help);

  // Takes one or more values. If the option is given again, the new values replace the earlier
  // ones.
  FlagHandle List(const char* names, std::vector<std::string>& target, const char* group,
                  const std::string& help);

  // Adds an option that the help does not list and that has no target. If it is given, parsing
  // calls `found` once, with its last value. `values`: number of values that follow the option; -1:
  // one or more. 0: a switch, for which `found` receives an empty string; --switch=false does not
  // call `found`. Exceptions of `found` propagate from Parse().
  void Hidden(const char* name, int values, std::function<void(const std::string& value)> found);

  void SetRequired(const char* name, bool required);  // the option must exist
  void Footer(const std::string& text);               // printed after the help

  const std::string& name() const;
  bool Has(const std::string& name) const;    // `name` with its dashes
  bool Given(const std::string& name) const;  // call after parsing; the option must exist
  // The long names of each option, without dashes, in the order in which options were added.
  std::vector<std::vector<std::string>> LongNames() const;

  // If `words` request the help, prints it and returns false. Error kInvalid names the option and
  // the command's --help.
  bool Parse(std::vector<std::string> words);

  // For programs with a single command. If the help is requested or parsing fails, prints the help
  // or the error and returns the exit code. Otherwise returns nullopt, and the program continues.
  std::optional<int> ParseMain(int argc, char** argv);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace switchyard
