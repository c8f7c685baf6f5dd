// Command-line parsing. Only command_line.cc includes CLI11, whose headers and templates take 9 to
// 14 s of compilation in every object that uses them.
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

// An option that was added to a CommandLine, for checks of its value and for its help. Valid as
// long as the CommandLine. Checks apply to each value of a vector; their errors name the option.
class FlagHandle {
 public:
  explicit FlagHandle(CLI::Option* option) : option_(option) {}

  FlagHandle Range(int least, int most);        // both included
  FlagHandle Range(double least, double most);  // both included
  FlagHandle Positive();
  FlagHandle NonNegative();
  FlagHandle OneOf(std::initializer_list<const char*> values);
  FlagHandle ExistingFile();
  FlagHandle Required();
  FlagHandle Group(const char* group);  // heading in the help; "": hidden
  FlagHandle ShowDefault();             // the target's present value, in the help
  FlagHandle OptionalValue();           // without a value, the target becomes empty: a string
  FlagHandle TakeLast();                // may be given several times; the last value counts

 private:
  CLI::Option* option_;
};

// The options of one command. `names` are separated by commas; a name without dashes is a
// positional argument, and of a switch !--no-x sets false. One thread at a time.
class CommandLine {
 public:
  // `name`: the command as users type it, for errors; empty: argv[0] (ParseMain).
  explicit CommandLine(const std::string& description, const std::string& name = {});
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // May be given once, without a default in the help, in the group "Options". A vector takes
  // several values.
  FlagHandle Option(const char* names, FlagTarget target, const std::string& help = {});

  // With a group, the default in the help, and TakeLast(): the command line overrides --config.
  FlagHandle Flag(const char* names, FlagTarget target, const char* group, const std::string& help);

  // Takes no value (--switch=false sets false); may be given several times, the last one counts.
  FlagHandle Switch(const char* names, bool& target, const char* group, const std::string& help);

  // Takes one or more values. If the option is given again, the new values replace the earlier
  // ones.
  FlagHandle List(const char* names, std::vector<std::string>& target, const char* group,
                  const std::string& help);

  // Hidden in the help, without a target: if it is given, parsing calls `found` once, with its last
  // value. `values`: how many follow it; 0: it is a switch, its value is empty, and --switch=false
  // does not call `found`; -1: one or more. Parse() throws what `found` throws.
  void Hidden(const char* name, int values, std::function<void(const std::string& value)> found);

  void SetRequired(const char* name, bool required);  // of an option that was added before
  void Footer(const std::string& text);               // after the help

  const std::string& name() const;
  bool Has(const std::string& name) const;    // `name` with its dashes
  bool Given(const std::string& name) const;  // after parsing; the option exists
  // The long names of each option, without dashes, in the order in which options were added.
  std::vector<std::vector<std::string>> LongNames() const;

  // Prints the help and returns false if `words` ask for it. Error kInvalid names the option and
  // the command's --help.
  bool Parse(std::vector<std::string> words);

  // For programs of one command: prints the help or the error, and returns the exit code, if the
  // program is to end.
  std::optional<int> ParseMain(int argc, char** argv);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace switchyard
