#include "core/bounded_json.h"

#include <utility>

#include "core/error.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;

// Builds the document and counts its values.
class Builder final : public JsonEvents {
 public:
  Builder(std::string_view name, JsonBounds bounds)
      : JsonEvents(name, bounds.depth), max_values_(bounds.values), dom_(root_) {}

  Json Take() && { return std::move(root_); }

  bool null() override { return Count() && dom_.null(); }
  bool boolean(bool value) override { return Count() && dom_.boolean(value); }
  bool number_integer(int64_t value) override { return Count() && dom_.number_integer(value); }
  bool number_unsigned(uint64_t value) override { return Count() && dom_.number_unsigned(value); }
  bool number_float(double value, const std::string& text) override {
    return Count() && dom_.number_float(value, text);
  }
  bool string(std::string& value) override { return Count() && dom_.string(value); }
  bool key(std::string& value) override { return Count() && dom_.key(value); }
  bool start_object(size_t size) override { return Count() && Enter() && dom_.start_object(size); }
  bool end_object() override { return Leave() && dom_.end_object(); }
  bool start_array(size_t size) override { return Count() && Enter() && dom_.start_array(size); }
  bool end_array() override { return Leave() && dom_.end_array(); }

 private:
  bool Count() {
    if (++values_ > max_values_)
      throw Invalid("{}: has more than {} JSON values", name(), max_values_);
    return true;
  }

  const size_t max_values_;
  size_t values_ = 0;
  Json root_;
  nlohmann::detail::json_sax_dom_parser<Json> dom_;
};

}  // namespace

bool JsonEvents::Enter() {
  if (++depth_ > max_depth_) throw Invalid("{}: nests deeper than {} levels", name_, max_depth_);
  return true;
}

bool JsonEvents::parse_error(size_t, const std::string&, const Json::exception& error) {
  throw Invalid("{}: not JSON: {}", name_, error.what());
}

void ParseJsonEvents(std::string_view text, nlohmann::json_sax<Json>* sax) {
  // Json::sax_parse would also compile the readers of binary formats.
  auto input = nlohmann::detail::input_adapter(text.data(), text.data() + text.size());
  nlohmann::detail::parser<Json, nlohmann::detail::SwitchyardCharacters>(std::move(input))
      .sax_parse(sax);
}

Json ParseBoundedJson(std::string_view text, std::string_view name, JsonBounds bounds) {
  Builder builder(name, bounds);
  ParseJsonEvents(text, &builder);
  return std::move(builder).Take();
}

}  // namespace switchyard
