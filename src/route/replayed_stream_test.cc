// A stream that several workers answer looks like that of one worker.
#include "route/replayed_stream.h"

#include <gmock/gmock.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/format.h"
#include "route/proxy.h"

namespace switchyard::route {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Json = nlohmann::ordered_json;

std::string Chunk(const std::string& id, const std::string& text, const char* finish = nullptr) {
  Json choice = {{"index", 0}, {"delta", {{"content", text}}}, {"finish_reason", nullptr}};
  if (finish) choice["finish_reason"] = finish;
  return Json{{"id", id}, {"created", 1}, {"choices", {choice}}}.dump();
}

std::string TextOf(const std::vector<std::string>& events) {
  std::string text;
  for (const std::string& event : events) {
    if (event == "[DONE]") continue;
    const Json json = Json::parse(event);
    for (const Json& choice : json["choices"])
      text += choice["delta"].value("content", std::string());
  }
  return text;
}

TEST(EventReaderTest, BytesMayBeDividedAnywhere) {
  const std::string bytes =
      ": waiting\n\ndata: {\"a\":1}\n\nevent: n\ndata: x\ndata: y\r\n\r\nevent: z\n\n"
      "data:[DONE]\n\n";
  for (size_t size = 1; size <= bytes.size(); ++size) {
    EventReader reader;
    std::vector<std::string> data, comments, names;
    for (size_t at = 0; at < bytes.size(); at += size) {
      for (const EventReader::Event& event : reader.Add(std::string_view(bytes).substr(at, size))) {
        (event.data.empty() ? comments : data)
            .push_back(event.data.empty() ? event.comment : event.data);
        names.push_back(event.name);
      }
    }
    EXPECT_THAT(names, ElementsAre("", "", "n", ""));
    EXPECT_THAT(data, ElementsAre("{\"a\":1}", "x\ny", "[DONE]"));
    EXPECT_THAT(comments, ElementsAre(": waiting"));
  }
}

TEST(ReplayedStreamTest, TheFirstWorkersEventsAreUnchanged) {
  ReplayedStream stream(StreamFormat::kChunks);
  EXPECT_EQ(stream.Next("{ \"any\" : text"), "{ \"any\" : text");
  EXPECT_EQ(stream.Next(Chunk("a", "x")), Chunk("a", "x"));
  EXPECT_FALSE(stream.done());
  EXPECT_EQ(stream.Next("[DONE]"), "[DONE]");
  EXPECT_TRUE(stream.done());
}

TEST(ReplayedStreamTest, LaterWorkersContinueWhateverTheirEventsAre) {
  const std::string text = "The yard has two tracks.";
  for (size_t sent = 0; sent <= text.size(); ++sent) {
    for (const size_t size : {1, 2, 5, 24}) {
      ReplayedStream stream(StreamFormat::kChunks);
      std::vector<std::string> got;
      const auto take = [&](const std::string& data) {
        if (const auto event = stream.Next(data)) got.push_back(*event);
      };
      for (size_t i = 0; i < sent; ++i) take(Chunk("a", text.substr(i, 1)));
      for (int replay = 0; replay < 2; ++replay) {
        ASSERT_TRUE(stream.Restart());
        // The first replay ends early too.
        for (size_t i = 0; i < text.size() && (replay > 0 || i < 8); i += size)
          take(Chunk("b", text.substr(i, size), i + size >= text.size() ? "stop" : nullptr));
      }
      take("[DONE]");
      EXPECT_EQ(TextOf(got), text);
      EXPECT_EQ(got.back(), "[DONE]");
      EXPECT_EQ(Json::parse(got[got.size() - 2])["choices"][0]["finish_reason"], "stop");
      for (size_t i = 0; i + 1 < got.size() && sent > 0; ++i)
        EXPECT_EQ(Json::parse(got[i])["id"], "a");
    }
  }
}

TEST(ReplayedStreamTest, ListsRolesCallsAndUsageAreSentOnce) {
  const auto event = [](Json choice) { return Json{{"choices", {choice}}}.dump(); };
  const std::string role =
      event({{"index", 1}, {"delta", {{"role", "assistant"}, {"content", ""}}}});
  const auto call = [&](const char* arguments) {
    return event({{"index", 1},
                  {"delta",
                   {{"tool_calls",
                     {{{"index", 0},
                       {"id", "x"},
                       {"function", {{"name", "f"}, {"arguments", arguments}}}}}}}}});
  };
  const auto logprobs = [&](std::vector<int> entries) {
    return event({{"index", 1}, {"delta", Json::object()}, {"logprobs", {{"content", entries}}}});
  };
  const std::string usage = R"({"choices":[],"usage":{"total_tokens":3}})";
  ReplayedStream stream(StreamFormat::kChunks);
  for (const std::string& data : {role, call("{\"a\""), logprobs({1, 2})}) stream.Next(data);
  ASSERT_TRUE(stream.Restart());
  EXPECT_EQ(stream.Next(role), std::nullopt);
  EXPECT_EQ(stream.Next(call("{\"a\"")), std::nullopt);
  const auto rest = stream.Next(call(": 1}"));
  ASSERT_TRUE(rest);
  EXPECT_EQ(Json::parse(*rest)["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"],
            ": 1}");
  const auto entries = stream.Next(logprobs({1, 2, 3}));
  ASSERT_TRUE(entries);
  EXPECT_EQ(Json::parse(*entries)["choices"][0]["logprobs"]["content"], Json({3}));
  EXPECT_EQ(stream.Next(usage), usage);
  ASSERT_TRUE(stream.Restart());
  EXPECT_EQ(stream.Next(usage), std::nullopt);
}

TEST(ReplayedStreamTest, CumulativeEventsCountByTheirTokens) {
  const auto event = [](int index, int tokens, bool ends) {
    return fmt::format(R"({{"text":"\"completion_tokens\":99","meta_info":{{"finish_reason":{},)"
                       R"("completion_tokens":{}}},"index":{}}})",
                       ends ? R"({"type":"stop"})" : "null", tokens, index);
  };
  ReplayedStream stream(StreamFormat::kTotals);
  EXPECT_TRUE(stream.Next(event(0, 1, false)));
  EXPECT_TRUE(stream.Next(event(0, 2, false)));
  EXPECT_TRUE(stream.Next(event(1, 1, true)));
  ASSERT_TRUE(stream.Restart());
  EXPECT_FALSE(stream.Next(event(0, 1, false)));
  EXPECT_FALSE(stream.Next(event(1, 1, true)));
  EXPECT_FALSE(stream.Next(event(0, 2, false)));
  EXPECT_TRUE(stream.Next(event(0, 2, true)));  // its end is new
}

// The named events of a worker. `size`: bytes of a text in an event. Ids depend on `worker`.
class TypedEvents {
 public:
  struct Event {
    std::string name, data;
  };
  TypedEvents(std::string worker, size_t size) : worker_(std::move(worker)), size_(size) {}

  std::vector<Event> Response() {
    const Json message = {{"id", "msg_" + worker_}, {"type", "message"}};
    const Json call = {{"id", "fc_" + worker_}, {"call_id", "call_" + worker_}, {"name", "f"}};
    Json response = {{"id", "resp_" + worker_}, {"created_at", worker_ == "a" ? 1 : 2}};
    Add("response.created", {{"response", response}});
    Add("response.output_item.added", {{"output_index", 0}, {"item", message}});
    Deltas(kText, "response.output_text.delta", [&](const std::string& text) {
      return Json{
          {"item_id", message["id"]}, {"output_index", 0}, {"content_index", 0}, {"delta", text}};
    });
    Add("response.output_text.done", {{"output_index", 0}, {"text", kText}});
    Add("response.output_item.added", {{"output_index", 1}, {"item", call}});
    Deltas(kArguments, "response.function_call_arguments.delta", [&](const std::string& text) {
      return Json{{"item_id", call["id"]}, {"output_index", 1}, {"delta", text}};
    });
    response["output"] = Json::array({message, call});
    Add("response.completed", {{"response", response}});
    return std::move(events_);
  }
  std::vector<Event> Message() {
    Add("message_start", {{"message", {{"id", "msg_" + worker_}}}});
    Add("content_block_start", {{"index", 0}, {"content_block", {{"type", "text"}}}});
    Deltas(kText, "content_block_delta", [&](const std::string& text) {
      return Json{{"index", 0}, {"delta", {{"type", "text_delta"}, {"text", text}}}};
    });
    Add("content_block_stop", {{"index", 0}});
    Add("content_block_start", {{"index", 1}, {"content_block", {{"id", "call_" + worker_}}}});
    Deltas(kArguments, "content_block_delta", [&](const std::string& text) {
      return Json{{"index", 1}, {"delta", {{"type", "input_json_delta"}, {"partial_json", text}}}};
    });
    Add("message_delta", {{"delta", {{"stop_reason", "tool_use"}}}});
    Add("message_stop", Json::object());
    return std::move(events_);
  }

  static constexpr const char* kText = "The yard has two tracks.";
  static constexpr const char* kArguments = R"({"track":2})";

 private:
  void Add(const std::string& name, const Json& members) {
    Json event = {{"type", name}};
    if (name.starts_with("response.")) event["sequence_number"] = events_.size();
    event.update(members);
    events_.push_back({name, event.dump()});
  }
  template <typename Make>
  void Deltas(const std::string& text, const std::string& name, const Make& make) {
    for (size_t at = 0; at < text.size(); at += size_) Add(name, make(text.substr(at, size_)));
  }

  const std::string worker_;
  const size_t size_;
  std::vector<Event> events_;
};

// What a client reads: texts joined by the type and the place, and other events as they are. Ids
// and times have those of worker "a".
std::vector<std::string> AsRead(const std::vector<std::string>& stream) {
  std::vector<std::string> out;
  std::map<std::string, size_t> texts;
  for (std::string data : stream) {
    for (const auto& [from, to] :
         {std::pair("_b\"", "_a\""), {"\"created_at\":2", "\"created_at\":1"}})
      for (size_t at = 0; (at = data.find(from)) != std::string::npos;)
        data.replace(at, std::string_view(from).size(), to);
    Json event = Json::parse(data);
    event.erase("sequence_number");
    Json* text = event.contains("delta") ? &event["delta"] : nullptr;
    for (const char* key : {"text", "partial_json"})
      if (text && text->is_object() && text->contains(key)) text = &(*text)[key];
    if (!text || !text->is_string()) {
      out.push_back(event.dump());
      continue;
    }
    const std::string own = *text;
    *text = "";
    const auto [place, first] = texts.try_emplace(event.dump(), out.size());
    if (first) out.emplace_back();
    out[place->second] += own;
  }
  return out;
}

// Each item has one id, and the response too.
void ExpectSameIds(const std::vector<std::string>& stream) {
  std::map<int64_t, Json> items;
  std::optional<Json> response;
  for (const std::string& data : stream) {
    const Json event = Json::parse(data);
    if (event.contains("item")) items[event["output_index"]] = event["item"];
    if (event.contains("item_id")) {
      EXPECT_EQ(event["item_id"], items[event["output_index"]]["id"]);
    }
    if (!event.contains("response")) continue;
    if (!response) response = event["response"];
    EXPECT_EQ(event["response"]["id"], (*response)["id"]);
    EXPECT_EQ(event["response"]["created_at"], (*response)["created_at"]);
    if (event["type"] == "response.completed") {
      EXPECT_EQ(event["response"]["output"], Json::array({items[0], items[1]}));
    }
  }
}

TEST(ReplayedStreamTest, NamedEventsContinueWithTheFirstWorkersIds) {
  for (const bool response : {false, true}) {
    const auto events = [&](const char* worker, size_t size) {
      TypedEvents made(worker, size);
      return response ? made.Response() : made.Message();
    };
    const auto first = events("a", 5), second = events("b", 3);
    std::vector<std::string> all;
    for (const auto& event : first) all.push_back(event.data);
    const std::vector<std::string> want = AsRead(all);
    for (size_t sent = 0; sent < first.size(); ++sent) {
      SCOPED_TRACE(sent);
      ReplayedStream stream(StreamFormat::kTyped);
      std::vector<std::string> got;
      for (size_t i = 0; i < sent; ++i)
        got.push_back(stream.Next(first[i].data, first[i].name).value());
      EXPECT_EQ(got, std::vector<std::string>(all.begin(), all.begin() + sent));
      // A worker that ends after its first events, then one that sends all.
      for (const size_t more : {size_t{2}, second.size()}) {
        EXPECT_FALSE(stream.done());
        ASSERT_TRUE(stream.Restart());
        for (size_t i = 0; i < more; ++i)
          if (const auto data = stream.Next(second[i].data, second[i].name)) got.push_back(*data);
      }
      EXPECT_TRUE(stream.done());
      EXPECT_EQ(AsRead(got), want);
      ExpectSameIds(got);
      for (size_t i = 0; response && i < got.size(); ++i)
        EXPECT_EQ(Json::parse(got[i])["sequence_number"], i);
    }
  }
}

http::Request Post(const std::string& path, const std::string& body) {
  http::Request request;
  request.method = "POST";
  request.path = path;
  request.body = body;
  return request;
}

TEST(PairRequestTest, BothBodiesHaveTheRoomAndTheSeed) {
  const auto pair =
      PairRequest::Of(Post("/v1/chat/completions",
                           R"({"messages":[],"stream":true,"stream_options":{},"rid":"r"})"),
                      12);
  ASSERT_TRUE(pair);
  const auto bodies = pair->For("10.0.0.1", 8998, 77, 0);
  const Json decode = Json::parse(bodies.decode), prefill = Json::parse(bodies.prefill);
  for (const Json& body : {decode, prefill}) {
    EXPECT_EQ(body["bootstrap_host"], "10.0.0.1");
    EXPECT_EQ(body["bootstrap_port"], 8998);
    EXPECT_EQ(body["bootstrap_room"], 77);
    EXPECT_EQ(body["seed"], 12);
    EXPECT_EQ(body["rid"], "r");
  }
  EXPECT_EQ(decode["stream"], true);
  EXPECT_EQ(prefill["stream"], false);
  EXPECT_FALSE(prefill.contains("stream_options"));
  const Json again = Json::parse(pair->For("10.0.0.1", std::nullopt, 78, 2).decode);
  EXPECT_FALSE(again.contains("bootstrap_port"));
  EXPECT_EQ(again["rid"], "r~2");
}

TEST(PairRequestTest, AGivenSeedStays) {
  const auto seeded = PairRequest::Of(Post("/v1/completions", R"({"prompt":"a","seed":3})"), 12);
  EXPECT_EQ(Json::parse(seeded->For("h", 1, 1, 0).decode)["seed"], 3);
  const auto native = PairRequest::Of(
      Post("/generate", R"({"text":["a","b"],"sampling_params":[{"sampling_seed":4},{}]})"), 12);
  const Json body = Json::parse(native->For("h", 1, 1, 0).decode);
  EXPECT_EQ(body["sampling_params"][0]["sampling_seed"], 4);
  EXPECT_EQ(body["sampling_params"][1]["sampling_seed"], 13);
}

TEST(PairRequestTest, AllPathsThatGenerateTextHavePairs) {
  for (const char* path :
       {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"}) {
    const auto pair = PairRequest::Of(Post(path, "{}"), 12);
    ASSERT_TRUE(pair) << path;
    EXPECT_EQ(Json::parse(pair->For("h", 1, 1, 0).decode)["seed"], 12);
  }
  EXPECT_FALSE(PairRequest::Of(Post("/v1/messages/count_tokens", "{}"), 1));
}

TEST(PairRequestTest, OtherRequestsHaveNoPair) {
  EXPECT_FALSE(PairRequest::Of(Post("/v1/embeddings", "{}"), 1));
  EXPECT_FALSE(PairRequest::Of(Post("/generate", "[]"), 1));
  EXPECT_FALSE(PairRequest::Of(Post("/generate", "{"), 1));
  http::Request get = Post("/generate", "{}");
  get.method = "GET";
  EXPECT_FALSE(PairRequest::Of(get, 1));
}

}  // namespace
}  // namespace switchyard::route
