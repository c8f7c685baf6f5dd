#include <gmock/gmock.h>

#include "server/http/test_client.h"
#include "server/native/native.h"
#include "server/openai/answering_server.h"

namespace switchyard::native {
namespace {

using ::testing::HasSubstr;

std::string Refused(const char* args, const LayoutSizes& sizes) {
  EngineControls controls;
  try {
    ApplyServerArgs(Json::parse(args), sizes, &controls);
  } catch (const RequestError& error) {
    return error.param();
  }
  return "no error";
}

TEST(ControlFields, OfServerArgsAreAppliedOrRefusedByName) {
  const LayoutSizes one{.mesh = {.tp = 2, .dp = 2}, .max_running_requests = 8};
  const LayoutSizes stages{.mesh = {.tp = 2, .pp = 2}, .max_running_requests = 8};
  EngineControls controls{.paused = true};
  ApplyServerArgs(Json::parse(R"({"server_args": {"max_running_requests": 10}})"), one, &controls);
  EXPECT_EQ(controls, (EngineControls{.paused = true, .max_running_requests = 5}));
  ApplyServerArgs(Json::parse(R"({"server_args": {"pp_max_micro_batch_size": 3}})"), stages,
                  &controls);
  EXPECT_EQ(controls.max_micro_batch, 3);
  EXPECT_EQ(controls.max_running_requests, 5);

  EXPECT_EQ(Refused(R"({})", one), "server_args");
  EXPECT_EQ(Refused(R"({"server_args": 3})", one), "server_args");
  for (const char* value : {"1", "17", "true", "\"x\""}) {
    const std::string body =
        std::string(R"({"server_args": {"max_running_requests": )") + value + "}}";
    EXPECT_EQ(Refused(body.c_str(), one), "server_args.max_running_requests") << value;
  }
  EXPECT_EQ(Refused(R"({"server_args": {"pp_max_micro_batch_size": 3}})", one),
            "server_args.pp_max_micro_batch_size");
  EXPECT_EQ(Refused(R"({"server_args": {"speculative_accept_threshold_acc": 0.9}})", one),
            "server_args.speculative_accept_threshold_acc");
  EXPECT_EQ(Refused(R"({"server_args": {"tp_size": 4}})", one), "server_args.tp_size");
  EXPECT_EQ(Refused(R"({"server_args": {}, "state_data": {}})", one), "state_data");
}

TEST(ControlFields, OfPausesAndDelaysAreChecked) {
  EXPECT_EQ(ParsePause(Json::object()), PauseAction::kAbort);
  EXPECT_EQ(ParsePause({{"mode", "retract"}}), PauseAction::kRetract);
  EXPECT_EQ(ParsePause({{"mode", "in_place"}}), PauseAction::kNone);
  EXPECT_THROW(ParsePause({{"mode", "stop"}}), RequestError);
  EXPECT_THROW(ParsePause({{"modes", "abort"}}), RequestError);
  EXPECT_EQ(ParseSlowDown(Json::object()), 0);
  EXPECT_EQ(ParseSlowDown({{"forward_sleep_time", nullptr}}), 0);
  EXPECT_EQ(ParseSlowDown({{"forward_sleep_time", -1}}), 0);
  EXPECT_EQ(ParseSlowDown({{"forward_sleep_time", 0.25}}), 0.25);
  EXPECT_THROW(ParseSlowDown({{"forward_sleep_time", 61}}), RequestError);
}

class ControlRoutes : public ::testing::Test {
 protected:
  ControlRoutes() { server.Answer("yes"); }
  AnsweringServer server{"qwen3"};
};

TEST_F(ControlRoutes, PauseAndContinue) {
  Json answer = server.Ask("/pause_generation", {{"mode", "in_place"}});
  EXPECT_EQ(answer["message"], "Generation paused successfully.");
  EXPECT_EQ(answer["status"], "ok");
  EXPECT_TRUE(server.world().front.controls().paused);
  answer = server.Ask("/continue_generation", Json::object());
  EXPECT_EQ(answer["message"], "Generation continued successfully.");
  EXPECT_FALSE(server.world().front.controls().paused);
  EXPECT_EQ(server.Ask("/pause_generation", Json::object())["aborted_requests"], 0);
}

// Without an answer of the ranks, there are no numbers to report.
TEST_F(ControlRoutes, StatisticsOfRanksThatAreLostMeanwhileAreAnError) {
  for (const char* path : {"/get_server_info", "/get_load"}) {
    AnsweringServer losing("qwen3");
    losing.world().link.lost_by_query = true;
    http::TestClient client(losing.port());
    client.Get(path);
    const http::TestResponse response = client.Read(false).value_or(http::TestResponse{});
    EXPECT_EQ(response.status, 503) << path;
    EXPECT_THAT(response.body, HasSubstr("lost its ranks")) << path;
  }
}

TEST_F(ControlRoutes, OtherControls) {
  EXPECT_EQ(server.Post("/slow_down", {{"forward_sleep_time", 0.5}}), "null");
  EXPECT_EQ(server.world().front.controls().step_delay_seconds, 0.5);
  EXPECT_THAT(server.Post("/freeze_gc", Json::object()), HasSubstr("no garbage collector"));
  EXPECT_EQ(server.Post("/configure_logging", {{"log_requests", true}}), "");
  EXPECT_TRUE(server.world().service.request_log->enabled);
  EXPECT_THAT(server.Post("/configure_logging", {{"log_level", "loud"}}, 400),
              HasSubstr("log_level"));
}

TEST_F(ControlRoutes, ASessionContinuesItsRequests) {
  EXPECT_EQ(server.Ask("/open_session", {{"capacity_of_str_len", 100}, {"session_id", "s"}}), "s");
  const auto ask = [&](const char* rid, Json params, int status = 200) {
    return server.Ask("/generate",
                      {{"input_ids", {5, 6}}, {"rid", rid}, {"session_params", std::move(params)}},
                      status);
  };
  const Json first = ask("a", {{"id", "s"}});
  EXPECT_EQ(first["meta_info"]["prompt_tokens"], 2);
  const auto output = static_cast<int>(first["output_ids"].size());
  ASSERT_GT(output, 0);
  const Json second = ask("b", {{"id", "s"}, {"rid", "a"}});
  EXPECT_EQ(second["meta_info"]["prompt_tokens"], 4 + output);
  EXPECT_EQ(ask("c", {{"id", "s"}, {"rid", "b"}, {"offset", 3}})["meta_info"]["prompt_tokens"], 5);
  EXPECT_THAT(ask("d", {{"id", "t"}}, 400)["message"].get<std::string>(),
              HasSubstr("session_params.id"));
  EXPECT_THAT(ask("d", {{"id", "s"}, {"rid", "x"}}, 400)["message"].get<std::string>(),
              HasSubstr("session_params.rid"));
  EXPECT_EQ(server.Post("/close_session", {{"session_id", "s"}}), "");
  server.Post("/close_session", {{"session_id", "s"}}, 400);
  ask("e", {{"id", "s"}}, 400);
}

}  // namespace
}  // namespace switchyard::native
