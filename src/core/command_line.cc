#include "core/command_line.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "core/error.h"

namespace switchyard {
namespace {

constexpr int kManyValues = 1 << 20;

// The first sentence of a help text, shortened at a word.
std::string FirstSentence(std::string text) {
  constexpr size_t kMost = 100;
  for (const char* end : {". ", "; ", ": ", "\n"}) text = text.substr(0, text.find(end));
  std::ranges::replace(text, '\t', ' ');
  if (text.size() > kMost) text = text.substr(0, text.rfind(' ', kMost));
  return text;
}

// One line for each visible name of an option: name, tab, summary, tab, values. Values are
// separated by commas; they are "*" if there is no list of them, and empty for switches.
std::string FlagLines(const CLI::App& app) {
  std::string lines;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    const std::string type = option->get_type_name();  // e.g. TEXT:{auto,cpu,cuda}
    const size_t open = type.find('{'), close = type.rfind('}');
    std::string values = option->get_items_expected_max() == 0 ? "" : "*";
    if (!values.empty() && open != std::string::npos && close != std::string::npos && open < close)
      values = type.substr(open + 1, close - open - 1);
    for (const std::string& name : option->get_lnames())
      lines +=
          fmt::format("--{}\t{}\t{}\n", name, FirstSentence(option->get_description()), values);
  }
  return lines;
}

// Ranges of CLI11 accept nan, which is neither below nor above a bound. Without a description, the
// check does not appear in the help.
std::string RefuseNan(const std::string& value) {
  if (!std::isnan(std::strtod(value.c_str(), nullptr))) return {};
  return fmt::format("Value {} is not a number", value);
}

}  // namespace

FlagHandle FlagHandle::Range(int least, int most) {
  option_->check(CLI::Range(least, most));
  return *this;
}

FlagHandle FlagHandle::Range(double least, double most) {
  option_->check(CLI::Range(least, most))->check(RefuseNan);
  return *this;
}

FlagHandle FlagHandle::Positive() {
  option_->check(CLI::PositiveNumber)->check(RefuseNan);
  return *this;
}

FlagHandle FlagHandle::NonNegative() {
  option_->check(CLI::NonNegativeNumber)->check(RefuseNan);
  return *this;
}

FlagHandle FlagHandle::OneOf(std::initializer_list<const char*> values) {
  const std::vector<std::string> all(values.begin(), values.end());
  // Help and completions list the values between commas, so those with a comma are left out there.
  std::vector<std::string> listed;
  std::ranges::copy_if(all, std::back_inserter(listed),
                       [](const std::string& value) { return value.find(',') == value.npos; });
  const CLI::Validator member = CLI::IsMember(listed);
  option_->check(CLI::Validator(
      [all, member](std::string& value) {
        return std::ranges::find(all, value) != all.end() ? std::string() : member(value);
      },
      member.get_description()));
  return *this;
}

FlagHandle FlagHandle::ExistingFile() {
  option_->check(CLI::ExistingFile);
  return *this;
}

FlagHandle FlagHandle::Required() {
  option_->required();
  return *this;
}

FlagHandle FlagHandle::Group(const char* group) {
  option_->group(group);
  return *this;
}

FlagHandle FlagHandle::ShowDefault() {
  option_->capture_default_str();
  return *this;
}

FlagHandle FlagHandle::OptionalValue() {
  option_->expected(0, 1);
  return *this;
}

FlagHandle FlagHandle::TakeLast() {
  option_->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  return *this;
}

CommandLine::CommandLine(const std::string& description, const std::string& name)
    : app_(std::make_unique<CLI::App>(description, name)) {}

CommandLine::~CommandLine() = default;

FlagHandle CommandLine::Option(const char* names, FlagTarget target, const std::string& help) {
  return FlagHandle(std::visit(
      [&](auto* pointer) { return app_->add_option(names, *pointer, help); }, target.pointer()));
}

FlagHandle CommandLine::Flag(const char* names, FlagTarget target, const char* group,
                             const std::string& help) {
  return Option(names, target, help).Group(group).ShowDefault().TakeLast();
}

FlagHandle CommandLine::Switch(const char* names, bool& target, const char* group,
                               const std::string& help) {
  return FlagHandle(app_->add_flag(names, target, help)).Group(group).TakeLast();
}

FlagHandle CommandLine::List(const char* names, std::vector<std::string>& target, const char* group,
                             const std::string& help) {
  // The callback replaces the values at each occurrence. With an option bound to the vector, CLI11
  // would append the values of all occurrences.
  CLI::Option* option = app_->add_option_function<std::vector<std::string>>(
      names, [&target](const std::vector<std::string>& values) { target = values; }, help);
  option->trigger_on_parse()->expected(1, kManyValues);
  return FlagHandle(option).Group(group);
}

void CommandLine::Hidden(const char* name, int values,
                         std::function<void(const std::string&)> found) {
  CLI::Option* option = nullptr;
  if (values == 0) {
    option = app_->add_flag_function(name, [found = std::move(found)](std::int64_t count) {
      if (count > 0) found("");  // --switch=false counts -1
    });
  } else {
    option = app_->add_option_function<std::vector<std::string>>(
        name, [found = std::move(found)](const std::vector<std::string>& given) {
          found(given.empty() ? "" : given.back());
        });
    option->expected(1, values < 0 ? kManyValues : 1)
        ->multi_option_policy(values < 0 ? CLI::MultiOptionPolicy::TakeAll
                                         : CLI::MultiOptionPolicy::TakeLast);
  }
  option->group("");
}

void CommandLine::SetRequired(const char* name, bool required) {
  app_->get_option(name)->required(required);
}

void CommandLine::Footer(const std::string& text) { app_->footer(text); }

const std::string& CommandLine::name() const { return app_->get_name(); }

bool CommandLine::Has(const std::string& name) const {
  const CLI::App& app = *app_;
  return app.get_option_no_throw(name) != nullptr;
}

bool CommandLine::Given(const std::string& name) const { return !app_->get_option(name)->empty(); }

std::vector<std::vector<std::string>> CommandLine::LongNames() const {
  const CLI::App& app = *app_;
  std::vector<std::vector<std::string>> names;
  for (const CLI::Option* option : app.get_options()) names.push_back(option->get_lnames());
  return names;
}

bool CommandLine::Parse(std::vector<std::string> words) {
  if (std::ranges::find(words, "--help=flags") != words.end()) {
    fmt::print("{}", FlagLines(*app_));
    return false;
  }
  std::reverse(words.begin(), words.end());  // CLI11 expects reverse order
  try {
    app_->parse(words);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app_->help());
    return false;
  } catch (const CLI::ParseError& e) {
    throw Invalid("{}; see {} --help", e.what(), name());
  }
  return true;
}

std::optional<int> CommandLine::ParseMain(int argc, char** argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app_->exit(e);
  }
  return std::nullopt;
}

}  // namespace switchyard
