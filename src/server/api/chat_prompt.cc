#include "server/api/chat_prompt.h"

#include <utility>

#include "server/api/chat_fields.h"
#include "server/api/tools.h"
#include "text/chat/encode_rendered.h"

namespace switchyard {

RenderedPrompt ChatPrompt(const ServedModel& model, const Json& body, size_t limit) {
  const Fields f(body);
  const Json* messages = f.Find("messages");
  if (!messages) throw InvalidField("messages", "messages is missing");
  CheckChatFields(f);
  ChatInput chat{.messages = *messages};
  const bool hide_tools = ParseToolChoice(f).kind == ToolChoice::Kind::kNone;
  const Json* tools = f.Find("tools");
  if (tools && !hide_tools && *tools != Json::array()) chat.tools = *tools;
  chat.kwargs = TemplateVariables(f);
  chat.continue_final_message = f.Bool("continue_final_message", false);
  chat.add_generation_prompt = f.Bool("add_generation_prompt", !chat.continue_final_message);
  const bool special = f.Bool("add_special_tokens", false);
  try {
    jinja::Rendered rendered = model.chat_template.Apply(chat);
    std::vector<int32_t> ids = EncodeRendered(*model.tokenizer, rendered, special, limit);
    PromptEnd end = EndOf(rendered, chat.continue_final_message);
    return {.text = std::move(rendered.text), .ids = std::move(ids), .end = std::move(end)};
  } catch (const Error& e) {
    throw RequestError(e.kind(), "messages", e.what());
  }
}

}  // namespace switchyard
