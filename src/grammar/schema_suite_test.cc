// The cases of the JSON Schema test suite, which is not part of the repository:
//   git clone https://github.com/json-schema-org/JSON-Schema-Test-Suite
//   export SWITCHYARD_SCHEMA_SUITE=JSON-Schema-Test-Suite/tests/draft2020-12
//   build/release/src/grammar/grammar_test --gtest_filter='SchemaSuiteTest.*'
// With SWITCHYARD_SCHEMA_SUITE_REASONS set, it also prints why schemas are refused, and the valid
// values that no output can have.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "core/format.h"
#include "grammar/source.h"
#include "grammar/test_vocabulary.h"

namespace switchyard {
namespace {

struct Counts {
  int schemas = 0, refused = 0;
  int produced = 0, not_produced = 0;  // valid values
  int rejected = 0, accepted = 0;      // invalid values

  void operator+=(const Counts& other) {
    schemas += other.schemas;
    refused += other.refused;
    produced += other.produced;
    not_produced += other.not_produced;
    rejected += other.rejected;
    accepted += other.accepted;
  }
  void Print(const std::string& name) const {
    std::cout << fmt::format(
        "{:<26} schemas {:3}, refused {:3}; valid values: possible {:3}, impossible {:3}; "
        "invalid values: rejected {:3}, accepted {:3}\n",
        name, schemas, refused, produced, not_produced, rejected, accepted);
  }
};

bool ShowsReasons() { return std::getenv("SWITCHYARD_SCHEMA_SUITE_REASONS") != nullptr; }

// The grammar of a schema. nullptr: the schema is refused, by an error that states the reason.
std::shared_ptr<const CompiledGrammar> Compile(const nlohmann::ordered_json& group) {
  std::shared_ptr<const CompiledGrammar> grammar;
  const std::string why = InvalidMessage(
      [&] { grammar = CompileGrammar(JsonSchemaGrammar(group["schema"]), TestTable()); });
  EXPECT_NE(grammar == nullptr, why.empty()) << group["schema"];
  if (!why.empty() && ShowsReasons())
    std::cout << "  refused: " << group["description"] << ": " << why << "\n";
  return grammar;
}

Counts RunFile(const std::filesystem::path& file) {
  Counts counts;
  std::ifstream in(file);
  for (const auto& group : nlohmann::ordered_json::parse(in)) {
    ++counts.schemas;
    const auto grammar = Compile(group);
    if (!grammar) {
      ++counts.refused;
      continue;
    }
    for (const auto& test : group["tests"]) {
      const std::string value = test["data"].dump();
      const bool matches = Matches(grammar, value);
      if (test["valid"].get<bool>()) {
        ++(matches ? counts.produced : counts.not_produced);
        if (!matches && ShowsReasons())
          std::cout << "  impossible: " << group["schema"] << ": " << value << "\n";
      } else {
        ++(matches ? counts.accepted : counts.rejected);
        EXPECT_FALSE(matches) << group["schema"] << " " << test["description"] << ": " << value;
      }
    }
  }
  return counts;
}

// A schema is honoured or refused. No output of an honoured schema is invalid.
TEST(SchemaSuiteTest, NoGrammarAcceptsAnInvalidValue) {
  const char* folder = std::getenv("SWITCHYARD_SCHEMA_SUITE");
  if (folder == nullptr) GTEST_SKIP() << "SWITCHYARD_SCHEMA_SUITE is not set";
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  std::ranges::sort(files);
  ASSERT_FALSE(files.empty()) << folder;
  Counts total;
  for (const auto& file : files) {
    const Counts counts = RunFile(file);
    counts.Print(file.stem());
    total += counts;
  }
  total.Print("total");
  EXPECT_GT(total.produced, total.not_produced);
}

}  // namespace
}  // namespace switchyard
