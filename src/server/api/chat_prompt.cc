#include "server/api/chat_prompt.h"

#include "server/api/chat_fields.h"
#include "text/chat/encode_rendered.h"

namespace switchyard {

std::vector<int32_t> ChatPrompt(const ServedModel& model, const Json& body, size_t limit) {
  const Fields f(body);
  const Json* messages = f.Find("messages");
  if (!messages) throw InvalidField("messages", "messages is missing");
  CheckChatFields(f);
  ChatInput chat{.messages = *messages};
  const Json* choice = f.Find("tool_choice");
  const bool hide_tools = choice && *choice == "none";
  const Json* tools = f.Find("tools");
  if (tools && !hide_tools && *tools != Json::array()) chat.tools = *tools;
  chat.kwargs = TemplateVariables(f);
  chat.continue_final_message = f.Bool("continue_final_message", false);
  chat.add_generation_prompt = f.Bool("add_generation_prompt", !chat.continue_final_message);
  try {
    return EncodeRendered(*model.tokenizer, model.chat_template.Apply(chat), limit);
  } catch (const Error& e) {
    throw RequestError(e.kind(), "messages", e.what());
  }
}

}  // namespace switchyard
