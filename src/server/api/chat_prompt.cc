#include "server/api/chat_prompt.h"

#include "text/chat/encode_rendered.h"

namespace switchyard {

std::vector<int32_t> ChatPrompt(const ServedModel& model, const Json& body) {
  const Fields f(body);
  const Json* messages = f.Find("messages");
  if (!messages) throw Invalid("messages is missing");
  ChatInput chat{.messages = *messages};
  const Json* choice = f.Find("tool_choice");
  const bool hide_tools = choice && *choice == "none";
  if (const Json* tools = f.Find("tools"); tools && !hide_tools) chat.tools = *tools;
  if (const Json* kwargs = f.Find("chat_template_kwargs")) chat.kwargs = *kwargs;
  chat.continue_final_message = f.Bool("continue_final_message", false);
  chat.add_generation_prompt = f.Bool("add_generation_prompt", !chat.continue_final_message);
  return EncodeRendered(*model.tokenizer, model.chat_template.Apply(chat));
}

}  // namespace switchyard
