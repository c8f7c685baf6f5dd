// Which set of options an engine accepts, for tests: changes of a set that works.
#pragma once

#include <gmock/gmock.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/testing.h"
#include "engine/checks/checks.h"

namespace switchyard::test_checks {

inline constexpr char kAccepted[] = "no error";  // of ErrorOf

inline std::filesystem::path Fixture(const char* name) {
  return std::filesystem::path(SWITCHYARD_TEST_DATA) / "fixtures" / name;
}

// Four ranks with whole attention, which most flags accept.
inline EngineConfig FourRanks(const char* model = "qwen3_moe") {
  EngineConfig config;
  config.model_path = Fixture(model);
  config.max_total_tokens = 1000;
  config.device = "cpu";
  config.mesh = {.tp = 4, .ep = 4, .dp = 4, .dense_tp = 1};
  config.moe.a2a_backend = "deepep";
  return config;
}

// CheckFlags, CheckOptions and CheckDraft, as MakePlanOn calls them.
inline std::string RefusalOf(const EngineConfig& config, RankPlaces places = {}) {
  return ErrorOf([&] {
    CheckFlags(config);
    EnginePlan plan;
    plan.cuda = places.gpus;
    plan.host_experts = places.host_experts;
    plan.ranks_of_host = places.several_hosts ? 1 : config.mesh.world();
    plan.model = ReadModelConfig(config);
    CheckOptions(config, plan, places);
    CheckDraft(config, std::nullopt, places);
  });
}

// A change of the options, and the refusal; "": accepted.
struct Case {
  std::function<void(EngineConfig&)> change;
  std::string refusal;
};

inline void ExpectCases(const std::vector<Case>& cases, const char* model = "qwen3_moe",
                        RankPlaces places = {}) {
  for (size_t i = 0; i < cases.size(); ++i) {
    EngineConfig config = FourRanks(model);
    cases[i].change(config);
    const std::string refusal = RefusalOf(config, places);
    if (cases[i].refusal.empty()) {
      EXPECT_EQ(refusal, kAccepted) << "case " << i;
    } else {
      EXPECT_THAT(refusal, ::testing::HasSubstr(cases[i].refusal)) << "case " << i;
    }
  }
}

}  // namespace switchyard::test_checks
