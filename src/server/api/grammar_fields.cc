#include "server/api/grammar_fields.h"

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "grammar/source.h"
#include "text/jinja/exact_json.h"

namespace switchyard {
namespace {

constexpr jinja::JsonLimits kSchemaLimits = {.depth = 128, .keys = 4096};
constexpr char kSglangAnyObject[] = "$$ANY$$";  // SGLang's json_schema for any JSON object

// Whether a field has a value that means that the client does not use it.
bool IsUnset(const Json* value) {
  if (!value || *value == false) return true;
  if (value->is_string()) return value->get_ref<const std::string&>().empty();
  return value->is_structured() && value->empty();
}

class ConstraintReader {
 public:
  explicit ConstraintReader(JsonSpace space) : space_(space) {}

  // Adds the constraint of field `key`, which `make` creates. Errors that `make` throws are
  // completed by the field's name.
  void Add(const Fields& f, const char* key, const std::function<GrammarSource()>& make) {
    const std::string name = f.Name(key);
    if (found_)
      throw InvalidField(name,
                         "{} together with {} is not supported: want one constraint of the output",
                         name, found_->field);
    try {
      found_ = OutputConstraint{name, make()};
    } catch (const RequestError&) {
      throw;
    } catch (const Error& e) {
      throw InvalidField(name, "{}: {}", name, e.what());
    }
  }

  void AddText(const Fields& f, const char* key, GrammarSource (*make)(std::string)) {
    const Json* value = f.Find(key);
    if (!value || *value == false) return;
    const std::string text = f.String(key, "");
    if (!text.empty()) Add(f, key, [&] { return make(text); });
  }

  // Adds a schema: an object, or its JSON text. SGLang's "$$ANY$$" stands for any JSON object.
  void AddSchema(const Fields& f, const char* key) {
    const Json* value = f.Find(key);
    if (!value || *value == false) return;
    Add(f, key, [&] {
      if (*value == kSglangAnyObject) return JsonObjectGrammar(space_);
      return JsonSchemaGrammar(value->is_string() ? ParsedText(*value) : *value, space_);
    });
  }

  void AddTag(const Fields& f, const char* key) {
    const Json* value = f.Find(key);
    if (IsUnset(value)) return;
    Add(f, key,
        [&] { return StructuralTagGrammar(value->is_string() ? ParsedText(*value) : *value); });
  }

  void AddChoices(const Fields& f, const char* key) {
    const Json* value = f.Find(key);
    if (!IsUnset(value)) Add(f, key, [&] { return ChoiceGrammar(f.Strings(key)); });
  }

  void AddObject(const Fields& f, const char* key) {
    if (f.Bool(key, false)) Add(f, key, [&] { return JsonObjectGrammar(space_); });
  }

  // Reads vLLM's fields for white space in JSON. They apply to constraints that are added later.
  void ReadSpace(const Fields& f, const char* pattern, const char* disable_any) {
    if (f.Bool(disable_any, false)) space_ = JsonSpace::kPython;
    if (const Json* value = f.Find(pattern); !value || *value == false) return;
    const std::string name = f.Name(pattern);
    const auto space = JsonSpaceOfPattern(f.String(pattern, ""));
    if (!space)
      throw InvalidField(name, "{} is not supported: want \"{}\" or \"\"", name, kAnyJsonSpace);
    space_ = *space;
  }

  JsonSpace space() const { return space_; }
  const std::optional<OutputConstraint>& found() const { return found_; }

 private:
  static Json ParsedText(const Json& text) {
    try {
      return jinja::ParseExactJson(text.get<std::string>(), "text", kSchemaLimits,
                                   [](std::string_view) { return false; });
    } catch (const Json::exception&) {
      throw Invalid("the text is not JSON");
    }
  }

  JsonSpace space_;
  std::optional<OutputConstraint> found_;
};

const Json& Member(const Fields& f, const char* key) {
  const Json* value = f.Find(key);
  if (!value || !value->is_object())
    throw InvalidField(f.Name(key), "{} is not an object", f.Name(key));
  return *value;
}

void ReadResponseFormat(const Fields& f, ConstraintReader& reader) {
  if (!f.Has("response_format")) return;
  const Json& format = Member(f, "response_format");
  const Fields inner(format, f.Name("response_format") + ".");
  const std::string type = inner.String("type", "text");
  if (type == "text") return;
  if (type == "json_object") {
    reader.Add(f, "response_format", [&] { return JsonObjectGrammar(reader.space()); });
  } else if (type == "json_schema") {
    const Json& named = Member(inner, "json_schema");
    const Fields schema(named, inner.Name("json_schema") + ".");
    schema.Bool("strict", true);  // checks the type only: either value enforces the schema
    const char* key = schema.Has("schema") ? "schema" : "schema_";
    if (!schema.Has(key))
      throw InvalidField(schema.Name("schema"), "{} is missing", schema.Name("schema"));
    reader.AddSchema(schema, key);
  } else if (type == "structural_tag") {
    reader.AddTag(f, "response_format");
  } else {
    throw InvalidField("response_format.type",
                       "response_format.type is {}, want text, json_object, json_schema or "
                       "structural_tag",
                       type);
  }
}

void ReadStructuredOutputs(const Fields& f, ConstraintReader& reader) {
  const Json* value = f.Find("structured_outputs");
  if (IsUnset(value)) return;
  const Json& object = Member(f, "structured_outputs");
  const Fields inner(object, f.Name("structured_outputs") + ".");
  for (const auto& [name, unused] : object.items()) {
    static const std::set<std::string> kKnown = {"json",
                                                 "regex",
                                                 "choice",
                                                 "grammar",
                                                 "json_object",
                                                 "structural_tag",
                                                 "whitespace_pattern",
                                                 "disable_any_whitespace",
                                                 "disable_fallback",
                                                 "disable_additional_properties",
                                                 "_backend",
                                                 "_backend_was_auto"};
    if (!kKnown.contains(name) && inner.Has(name.c_str()))
      throw InvalidField(inner.Name(name.c_str()), "{} is not supported", inner.Name(name.c_str()));
  }
  if (inner.Bool("disable_additional_properties", false))
    throw InvalidField(inner.Name("disable_additional_properties"),
                       "{} is not supported: set additionalProperties in the schema",
                       inner.Name("disable_additional_properties"));
  reader.ReadSpace(inner, "whitespace_pattern", "disable_any_whitespace");
  reader.AddSchema(inner, "json");
  reader.AddText(inner, "regex", RegexGrammar);
  reader.AddChoices(inner, "choice");
  reader.AddText(inner, "grammar", EbnfOrLarkGrammar);
  reader.AddObject(inner, "json_object");
  reader.AddTag(inner, "structural_tag");
}

}  // namespace

std::optional<OutputConstraint> FindConstraint(const Service& service, const Fields& f) {
  ConstraintReader reader(service.grammars ? service.grammars->space() : JsonSpace::kAny);
  ReadResponseFormat(f, reader);
  reader.AddSchema(f, "json_schema");
  reader.AddText(f, "regex", RegexGrammar);
  reader.AddText(f, "ebnf", EbnfGrammar);
  reader.AddTag(f, "structural_tag");
  reader.ReadSpace(f, "guided_whitespace_pattern", "guided_disable_any_whitespace");
  reader.AddSchema(f, "guided_json");
  reader.AddText(f, "guided_regex", RegexGrammar);
  reader.AddChoices(f, "guided_choice");
  reader.AddText(f, "guided_grammar", EbnfOrLarkGrammar);
  reader.AddObject(f, "guided_json_object");
  ReadStructuredOutputs(f, reader);
  return reader.found();
}

std::shared_ptr<const ReadyGrammar> CompileConstraint(const Service& service,
                                                      const OutputConstraint& constraint) {
  const auto& [field, source] = constraint;
  if (!service.grammars)
    throw InvalidField(field, "{} is not supported: the server runs with --grammar-backend none",
                       field);
  try {
    return service.grammars->Compile(source);
  } catch (const Error& e) {
    throw InvalidField(field, "{}: {}", field, e.what());
  }
}

void ParseGrammar(const Service& service, const Fields& f, GenerationSpec* spec) {
  if (const auto constraint = FindConstraint(service, f))
    spec->grammar = CompileConstraint(service, *constraint);
}

}  // namespace switchyard
