// The formats of tool calls and reasoning in the table of models exist.
#include <gtest/gtest.h>

#include <string>

#include "model/families/family.h"
#include "text/output/output_formats.h"

namespace switchyard {
namespace {

TEST(FamilyParsersTest, EachFamilyNamesKnownFormats) {
  for (const Family& family : Families()) {
    const std::string calls(family.tool_parser), reasoning(family.reasoning_parser);
    EXPECT_TRUE(calls.empty() || FindCallFormat(calls) != nullptr) << family.model_type;
    EXPECT_TRUE(reasoning.empty() || FindReasoningFormat(reasoning) != nullptr)
        << family.model_type;
  }
}

}  // namespace
}  // namespace switchyard
