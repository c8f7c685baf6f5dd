#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <utility>

#include "core/format.h"
#include "server/http/responses.h"
#include "server/openapi/openapi.h"
#include "server/openapi/schemas.h"
#include "text/output/output_formats.h"

namespace switchyard::openapi {
namespace {

constexpr char kJsonType[] = "application/json";

Json Ref(const std::string& schema) {
  return Json::object({{"$ref", "#/components/schemas/" + schema}});
}

Json Content(const char* type, Json schema) {
  Json content = Json::object();
  content[type]["schema"] = std::move(schema);
  return content;
}

Json ErrorResponse(const char* description) {
  return {{"description", description}, {"content", Content(kJsonType, Ref("Error"))}};
}

// Schema of one event of a stream, in the form of OpenAPI 3.2. If a stream fails, its last event is
// an error.
Json EventSchema(const Operation& operation) {
  Json data = {{"contentMediaType", kJsonType},
               {"contentSchema",
                Json::object({{"anyOf", Json::array({Ref(operation.event), Ref("Error")})}})}};
  if (operation.done) {
    Json done = Json::object({{"const", "[DONE]"}});
    data = Json::object({{"anyOf", Json::array({std::move(data), std::move(done)})}});
  }
  data["type"] = "string";
  Json properties = {{"event", Json::object({{"type", "string"}})}, {"data", std::move(data)}};
  return {{"type", "object"},
          {"description", "one event of the stream"},
          {"required", Json::array({"data"})},
          {"properties", std::move(properties)}};
}

Json OkResponse(const Operation& operation) {
  Json content = *operation.text != '\0'
                     ? Content(operation.text, Json::object({{"type", "string"}}))
                     : Content(kJsonType, Ref(operation.response));
  if (*operation.event != '\0') content[http::kEventStream]["schema"] = EventSchema(operation);
  return {{"description", "success"}, {"content", std::move(content)}};
}

// "POST /v1/models/{id}" becomes "post_v1_models_id".
std::string OperationId(const std::string& method, const std::string& path) {
  std::string id;
  for (const char c : method) id += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char c : path) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      id += c;
    } else if (!id.ends_with('_')) {
      id += '_';
    }
  }
  // "/v1/models" and "/v1/models/" have different ids.
  return path.ends_with('/') ? id + "list" : id;
}

Json PathParameters(const std::string& path) {
  Json parameters = Json::array();
  const size_t begin = path.find('{'), end = path.find('}');
  if (begin == std::string::npos) return parameters;
  parameters.push_back({{"name", path.substr(begin + 1, end - begin - 1)},
                        {"in", "path"},
                        {"required", true},
                        {"schema", {{"type", "string"}, {"minLength", 1}}}});
  return parameters;
}

Json OperationJson(const Operation& operation, http::Access access, bool with_keys) {
  Json json = {{"operationId", OperationId(operation.method, operation.path)},
               {"tags", Json::array({operation.tag})},
               {"summary", operation.summary}};
  if (access == http::Access::kControl)
    json["description"] = "Requires the admin key, if the server has one.";
  if (Json parameters = PathParameters(operation.path); !parameters.empty())
    json["parameters"] = std::move(parameters);
  if (*operation.body != '\0')
    json["requestBody"] = {{"required", !operation.optional_body},
                           {"content", Content(kJsonType, Ref(operation.body))}};
  Json& responses = json["responses"] = Json::object();
  responses["200"] = OkResponse(operation);
  responses["default"] = Json::object({{"$ref", "#/components/responses/Error"}});
  if (with_keys && std::string_view(operation.path) == "/health") json["security"] = Json::array();
  return json;
}

http::Access AccessOf(const http::Router& router, const Operation& operation) {
  const std::string path = *operation.route != '\0' ? operation.route : operation.path;
  for (const http::Router::Entry& entry : router.Entries())
    if (entry.method == operation.method && entry.path == path) return entry.access;
  return http::Access::kUser;
}

// Describes those entries of Operations() whose routes this server has registered. A test checks
// that every route has an entry.
Json Paths(const http::Router& router, bool with_keys) {
  Json paths = Json::object();
  for (const Operation& operation : Operations()) {
    const std::string route = *operation.route != '\0' ? operation.route : operation.path;
    if (router.RouteOf(route) != route) continue;
    std::string method = operation.method;
    std::ranges::transform(method, method.begin(), [](unsigned char c) { return std::tolower(c); });
    paths[operation.path][method] =
        OperationJson(operation, AccessOf(router, operation), with_keys);
  }
  return paths;
}

// Defaults from the checkpoint's generation_config.json.
void AddModelDefaults(const SamplingParams& defaults, Json* properties) {
  const auto set = [&](const char* name, double value) {
    // Rounds to the digits of a float.
    if (properties->contains(name))
      (*properties)[name]["default"] = Json::parse(fmt::format("{}", static_cast<float>(value)));
  };
  set("temperature", defaults.temperature);
  set("top_p", defaults.top_p);
  set("min_p", defaults.min_p);
  set("repetition_penalty", defaults.repetition_penalty);
  if (properties->contains("top_k")) (*properties)["top_k"]["default"] = defaults.top_k;
}

// Bounds that depend on the model and on the flags of the server.
void AddBounds(const Service& service, Json* schemas) {
  (*schemas)["TokenId"] = {
      {"type", "integer"}, {"minimum", 0}, {"maximum", service.model.config.vocab_size - 1}};
  // The default of the field is the server's parser. If the server has no parser, the field is
  // required.
  const auto parsers = [&](const char* body, const char* field, const auto& formats,
                           bool required) {
    Json names = Json::array();
    for (const auto& format : formats) {
      names.push_back(format.name);
      for (const std::string_view alias : format.aliases) names.push_back(alias);
    }
    if (!required) names.push_back(nullptr);
    if (required) (*schemas)[body]["required"].push_back(field);
    (*schemas)[body]["properties"][field] = Json::object({{"enum", std::move(names)}});
  };
  const OutputFormat& own = service.model.output_format;
  parsers("ParseFunctionCallRequest", "tool_call_parser", CallFormats(), own.calls == nullptr);
  parsers("SeparateReasoningRequest", "reasoning_parser", ReasoningFormats(),
          own.reasoning == nullptr);
  for (Json& schema : *schemas) {
    const auto properties = schema.find("properties");
    if (properties == schema.end()) continue;
    for (const char* field : {"routed_dp_rank", "data_parallel_rank"})
      if (properties->contains(field))
        (*properties)[field]["maximum"] = service.sizes().mesh.attention_groups() - 1;
    if (properties->contains("priority") && !service.args.engine.priority_scheduling)
      (*properties)["priority"] = {
          {"enum", {0, nullptr}},
          {"description", "other values need --enable-priority-scheduling"}};
  }
}

Json Schemas(const Service& service) {
  Json schemas = Json::object();
  for (const Body& body : Bodies()) {
    schemas[body.name] = BodySchema(body);
    AddModelDefaults(service.model.sampling_defaults, &schemas[body.name]["properties"]);
  }
  schemas["CompletionRequest"]["properties"]["max_tokens"]["default"] = 16;
  for (const NamedSchema& schema : ChatSchemas()) schemas[schema.name] = Json::parse(schema.schema);
  for (const NamedSchema& schema : PoolingSchemas())
    schemas[schema.name] = Json::parse(schema.schema);
  for (const NamedSchema& schema : ResponseSchemas())
    schemas[schema.name] = Json::parse(schema.schema);
  AddBounds(service, &schemas);
  return schemas;
}

}  // namespace

Json Document(const Service& service, const http::Router& router, bool with_keys) {
  std::string root = service.args.http.root_path;
  while (root.ends_with('/')) root.pop_back();
  Json document = {
      {"openapi", "3.1.0"},
      {"info",
       {{"title", "Switchyard"},
        {"version", SWITCHYARD_VERSION},
        {"description",
         fmt::format("Serves {}. Fields with x-refused give an error, unless their value is one "
                     "of those listed. Unknown fields are ignored. Numbers and booleans may also "
                     "be strings.",
                     service.model.name)}}},
      {"servers", Json::array({Json::object({{"url", root.empty() ? "/" : root}})})},
      {"paths", Paths(router, with_keys)},
      {"components",
       {{"schemas", Schemas(service)},
        {"responses",
         Json::object({{"Error", ErrorResponse("an error, in the format of OpenAI")}})}}}};
  if (with_keys) {
    document["components"]["securitySchemes"] = {
        {"bearer", {{"type", "http"}, {"scheme", "bearer"}}},
        {"header", {{"type", "apiKey"}, {"in", "header"}, {"name", "x-api-key"}}}};
    document["security"] = Json::array(
        {Json::object({{"bearer", Json::array()}}), Json::object({{"header", Json::array()}})});
  }
  return document;
}

}  // namespace switchyard::openapi
