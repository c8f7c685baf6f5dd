#include "server/http/responses.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "server/api/guarded.h"
#include "server/api/pending_response.h"
#include "server/api/request_fields.h"
#include "server/http/error_body.h"
#include "server/openai/openai.h"
#include "server/openai/response_items.h"

namespace switchyard::openai {
namespace {

using RequestPtr = std::shared_ptr<const http::Request>;
using StorePtr = std::shared_ptr<ResponseStore>;

// A parsed request. Immutable.
struct ResponseJob {
  std::shared_ptr<const ChatJob> chat;
  Json members;   // members of the response that repeat the request
  Json messages;  // messages of earlier responses and of the request
  Json input;     // messages of the request
  bool store = true;
};
using JobPtr = std::shared_ptr<const ResponseJob>;

// The state of one response.
class Response {
 public:
  Response(JobPtr job, ResponseItems::Sink sink) : job_(std::move(job)), items_(std::move(sink)) {
    if (job_->chat->output) output_.emplace(*job_->chat->output);
  }

  void Push(const std::string& text, const std::vector<uint32_t>& token_ends, FinishReason finish) {
    if (output_) {
      items_.Add(output_->Push(text, token_ends, finish));
    } else if (!text.empty()) {
      items_.Add({{.kind = OutputEvent::Kind::kContent, .call = -1, .text = text, .call_id = {}}});
    }
    if (finish != FinishReason::kNone) items_.Finish(finish == FinishReason::kStop);
  }

  // The JSON object of the response. `last`: the last event, which has usage and status; null: the
  // response is in progress.
  Json Object(const GenerationEvent* last, const std::string& error = {}) const {
    const Delivery& delivery = job_->chat->delivery;
    Json object = {{"id", delivery.id},
                   {"object", "response"},
                   {"created_at", delivery.created},
                   {"status", StatusOf(last, error)},
                   {"error", nullptr},
                   {"incomplete_details", nullptr},
                   {"model", delivery.model},
                   {"output", last ? items_.items() : Json::array()},
                   {"usage", nullptr}};
    object.update(job_->members);
    if (!error.empty()) object["error"] = {{"code", "server_error"}, {"message", error}};
    if (last && last->finish == FinishReason::kLength)
      object["incomplete_details"]["reason"] = "max_output_tokens";
    if (last && error.empty()) object["usage"] = UsageOf(*last);
    return object;
  }

  // Stores the response for later requests, unless `store` is false in the request.
  void Store(ResponseStore& store, const Json& object) const {
    if (!job_->store) return;
    Json messages = job_->messages;
    messages.push_back(items_.Message());
    store.Put(job_->chat->delivery.id,
              {.response = Dump(object), .messages = Dump(messages), .input = Dump(job_->input)});
  }

  const ResponseJob& job() const { return *job_; }

 private:
  static const char* StatusOf(const GenerationEvent* last, const std::string& error) {
    if (!error.empty()) return "failed";
    if (!last) return "in_progress";
    return last->finish == FinishReason::kStop ? "completed" : "incomplete";
  }

  Json UsageOf(const GenerationEvent& last) const {
    return {{"input_tokens", last.prompt_tokens},
            {"input_tokens_details", {{"cached_tokens", last.cached_tokens}}},
            {"output_tokens", last.completion_tokens},
            {"output_tokens_details",
             {{"reasoning_tokens", output_ ? output_->reasoning_tokens() : 0}}},
            {"total_tokens", last.prompt_tokens + last.completion_tokens}};
  }

  const JobPtr job_;
  std::optional<ChatOutput> output_;  // absent: no parsing; all text is content
  ResponseItems items_;
};

// The error of a generation that failed; empty if it did not.
std::string FailureOf(const Service& service, const GenerationEvent& e) {
  if (e.finish == FinishReason::kAbort) return "the request was aborted";
  return e.finish == FinishReason::kError ? RedactPaths(service, e.error) : "";
}

// Writes the events of a stream, with their sequence numbers.
class EventWriter {
 public:
  explicit EventWriter(http::Responder responder) : responder_(std::move(responder)) {}

  void Write(const std::string& type, const Json& members) {
    Json event = {{"type", type}, {"sequence_number", next_++}};
    event.update(members);
    responder_.Write(fmt::format("event: {}\n", type) + http::SseEvent(Dump(event)));
  }
  void WriteResponse(const char* type, Json object) {
    Write(type, Json::object({{"response", std::move(object)}}));
  }

 private:
  http::Responder responder_;
  int64_t next_ = 0;
};

PendingResponse::Events StreamEvents(const Service& service, const JobPtr& job,
                                     const StorePtr& store, const http::Responder& responder) {
  const auto writer = std::make_shared<EventWriter>(responder);
  const auto response = std::make_shared<Response>(
      job,
      [writer](const std::string& type, const Json& members) { writer->Write(type, members); });
  PendingResponse::Events events{.response_id = job->chat->delivery.id};
  events.on_news = [writer, response, store, &service](size_t, const GenerationEvent& e,
                                                       const Accumulated& a) {
    if (a.tokens.size() == e.tokens.size()) {
      writer->WriteResponse("response.created", response->Object(nullptr));
      writer->WriteResponse("response.in_progress", response->Object(nullptr));
    }
    if (const std::string error = FailureOf(service, e); !error.empty()) {
      // For a router, which repeats a request that has ended with 500 or more.
      const int code = e.finish == FinishReason::kAbort ? 499 : http::StatusOf(e.error_kind);
      return writer->Write(
          "response.failed",
          Json::object({{"code", code}, {"response", response->Object(&e, error)}}));
    }
    response->Push(e.text, e.token_ends, e.finish);
    if (!e.finished()) return;
    const Json object = response->Object(&e);
    response->Store(*store, object);
    writer->WriteResponse(
        e.finish == FinishReason::kStop ? "response.completed" : "response.incomplete", object);
  };
  events.on_end = [responder](const std::vector<Accumulated>&) { responder.EndStream(); };
  return events;
}

PendingResponse::Events FullResponseEvents(const Service& service, const JobPtr& job,
                                           const StorePtr& store,
                                           const http::Responder& responder) {
  PendingResponse::Events events{.response_id = job->chat->delivery.id};
  events.on_end = [job, store, responder, &service](const std::vector<Accumulated>& all) {
    const Accumulated& a = all[0];
    if (const std::string error = FailureOf(service, a.last); !error.empty())
      return responder.SendError(
          a.last.finish == FinishReason::kError ? http::StatusOf(a.last.error_kind) : 500, error);
    Response response(job, nullptr);
    response.Push(a.text, a.token_ends, a.last.finish);
    const Json object = response.Object(&a.last);
    response.Store(*store, object);
    responder.Send(200, http::kJson, Dump(object));
  };
  return events;
}

// The conversation that this request continues (previous_response_id), with its last response.
Json EarlierMessages(const Fields& f, const ResponseStore& store) {
  if (!f.Has("previous_response_id")) return Json::array();
  const std::string id = f.String("previous_response_id", "");
  const auto entry = store.Find(id);
  if (!entry)
    throw RequestError(ErrorKind::kNotFound, "previous_response_id",
                       fmt::format("there is no response {}: only recent responses are kept, and "
                                   "only if store was true",
                                   Dump(id).substr(0, 80)),
                       "previous_response_not_found");
  return Json::parse(entry->messages);
}

// Whether the response is stored. A prefill or decode worker stores none, because the next request
// may have other workers, and each of them would need the conversation.
bool Stores(const Service& service, const Fields& f) {
  const bool pair = service.args.engine.disaggregated();
  const auto refuse = [&](const char* field) {
    throw InvalidField(
        field, "{} is not supported with --disaggregation-mode: responses are not stored", field);
  };
  if (pair && f.Has("previous_response_id")) refuse("previous_response_id");
  if (pair && f.Bool("store", false)) refuse("store");
  return f.Bool("store", !pair);
}

// Members of the response that repeat the request.
Json RepeatedMembers(const Fields& f, bool store) {
  const auto value = [&](const char* key, const Json& otherwise) {
    const Json* given = f.Find(key);
    return given ? *given : otherwise;
  };
  return {{"instructions", value("instructions", nullptr)},
          {"max_output_tokens", value("max_output_tokens", nullptr)},
          {"metadata", value("metadata", Json::object())},
          {"parallel_tool_calls", f.Bool("parallel_tool_calls", true)},
          {"previous_response_id", value("previous_response_id", nullptr)},
          {"reasoning", value("reasoning", {{"effort", nullptr}, {"summary", nullptr}})},
          {"store", store},
          {"temperature", value("temperature", nullptr)},
          {"text", value("text", {{"format", Json::object({{"type", "text"}})}})},
          {"tool_choice", value("tool_choice", "auto")},
          {"tools", value("tools", Json::array())},
          {"top_p", value("top_p", nullptr)},
          {"truncation", "disabled"}};
}

JobPtr ParseResponse(const Service& service, const ResponseStore& store, const Json& body) {
  const Fields f(body);
  CheckModel(service, f);
  CheckFields(f, RequestKind::kResponses, service.unknown_fields);
  auto job = std::make_shared<ResponseJob>();
  job->store = Stores(service, f);
  job->input = InputMessages(f);
  job->messages = EarlierMessages(f, store);
  job->messages.insert(job->messages.end(), job->input.begin(), job->input.end());
  job->members = RepeatedMembers(f, job->store);
  try {
    job->chat = ParseChat(service, ResponsesChatBody(f, job->messages), "resp_");
  } catch (const RequestError& e) {
    throw Renamed(Renamed(e, "response_format.json_schema", "text.format"), "response_format",
                  "text.format");
  }
  return job;
}

void HandleCreate(Service& service, const StorePtr& store, const http::Request& request,
                  const http::Responder& responder) {
  service.front.CheckTask(/*pooled=*/false);
  const JobPtr job = ParseResponse(service, *store, ParseBody(request));
  const bool stream = job->chat->delivery.stream;
  PendingResponse::Start(service, job->chat->specs, stream, responder,
                         stream ? StreamEvents(service, job, store, responder)
                                : FullResponseEvents(service, job, store, responder));
}

[[noreturn]] void Missing(const std::string& id) {
  throw RequestError(ErrorKind::kNotFound, "response_id",
                     fmt::format("there is no response {}", Dump(id).substr(0, 80)),
                     "response_not_found");
}

// GET /v1/responses/ID and /v1/responses/ID/input_items.
void HandleGet(const ResponseStore& store, const std::string& path,
               const http::Responder& responder) {
  constexpr std::string_view kItems = "/input_items";
  const bool items = path.ends_with(kItems);
  const std::string id = items ? path.substr(0, path.size() - kItems.size()) : path;
  const auto entry = store.Find(id);
  if (!entry) Missing(id);
  if (!items) return responder.Send(200, http::kJson, entry->response);
  responder.Send(200, http::kJson, R"({"object":"list","data":)" + entry->input + "}");
}

void HandleDelete(ResponseStore& store, const std::string& id, const http::Responder& responder) {
  if (!store.Erase(id)) Missing(id);
  responder.Send(200, http::kJson, Dump({{"id", id}, {"object", "response"}, {"deleted", true}}));
}

}  // namespace

void RegisterResponses(http::Server& server, Service& service) {
  const auto store = std::make_shared<ResponseStore>();
  const auto route = [&](const char* method, const char* path, http::Handler handler) {
    server.Route(method, path, Guarded(service, std::move(handler)));
  };
  route("POST", "/v1/responses", [&service, store](const RequestPtr& r, const http::Responder& o) {
    HandleCreate(service, store, *r, o);
  });
  route("GET", "/v1/responses/{id}", [store](const RequestPtr& r, const http::Responder& out) {
    HandleGet(*store, r->params.at("id"), out);
  });
  route("DELETE", "/v1/responses/{id}", [store](const RequestPtr& r, const http::Responder& out) {
    HandleDelete(*store, r->params.at("id"), out);
  });
}

}  // namespace switchyard::openai
