#pragma once

#include <array>
#include <string>
#include <string_view>

namespace quire {

// For tests: chat templates in the styles of the families, in as few words as each needs. Written here; none is a model's.
struct TemplateCase {
  std::string_view name;
  std::string_view calls;  // what the assistant's turn does with message.tool_calls, as `c`, behind the text
  std::string_view open = "<|im_start|>", close = "<|im_end|>\n";
  std::string_view think_open = "<think>\n", think_close = "\n</think>\n\n";
  std::string_view prompt = "";  // what the prompt adds to the opened turn

  std::string source() const {
    const std::string begin(open), end(close);
    return "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
           "{% for m in messages %}{{ '" +
           begin +
           "' + m.role + '\\n' }}"
           "{% if m.role == 'assistant' and m.reasoning_content %}{{ '" +
           escaped(think_open) + "' + m.reasoning_content + '" + escaped(think_close) +
           "' }}{% endif %}{{ m.content }}"
           "{% if m.tool_calls %}" +
           std::string(calls) + "{% endif %}{{ '" + escaped(end) +
           "' }}{% endfor %}"
           "{% if add_generation_prompt %}{{ '" +
           begin + "assistant\\n" + escaped(prompt) + "' }}{% endif %}";
  }
  static std::string escaped(std::string_view text) {
    std::string out;
    for (const char c : text) out += c == '\n' ? std::string("\\n") : std::string(1, c);
    return out;
  }
};

inline constexpr TemplateCase kTemplateCases[] = {
    {.name = "hermes",
     .calls = "{% for c in m.tool_calls %}{{ '\\n<tool_call>\\n{\"name\": \"' + c.function.name + '\", "
              "\"arguments\": ' }}"
              "{{ c.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}"},
    {.name = "tags on lines",
     .calls = "{% for c in m.tool_calls %}{{ '\\n<tool_call>\\n<function=' + c.function.name + '>\\n' }}"
              "{% for k, v in c.function.arguments.items() %}{{ '<parameter=' + k + '>\\n' }}"
              "{{ v if v is string else v | tojson }}{{ '\\n</parameter>\\n' }}{% endfor %}"
              "{{ '</function>\\n</tool_call>' }}{% endfor %}",
     .prompt = "<think>\n"},
    {.name = "keys and values",
     .calls =
         "{% for c in m.tool_calls %}{{ '\\n<tool_call>' + c.function.name }}"
         "{% for k, v in c.function.arguments.items() %}{{ '\\n<arg_key>' + k + '</arg_key>\\n<arg_value>' }}"
         "{{ v if v is string else v | tojson }}{{ '</arg_value>' }}{% endfor %}{{ '\\n</tool_call>' }}{% "
         "endfor %}"},
    {.name = "invocations in a section",
     .calls = "{{ '\\n<x:tool_call>\\n' }}{% for c in m.tool_calls %}{{ '<invoke name=\"' + c.function.name "
              "+ '\">\\n' }}"
              "{% for k, v in c.function.arguments.items() %}{{ '<parameter name=\"' + k + '\">' }}"
              "{{ v if v is string else v | tojson }}{{ '</parameter>\\n' }}{% endfor %}{{ '</invoke>\\n' "
              "}}{% endfor %}"
              "{{ '</x:tool_call>' }}"},
    {.name = "a tag named as its key",
     .calls =
         "{{ '\\n<calls>\\n' }}{% for c in m.tool_calls %}{{ '<invoke name=\"' + c.function.name + '\">' }}"
         "{% for k, v in c.function.arguments.items() %}{{ '<' + k + '>' }}"
         "{{ v if v is string else v | tojson }}{{ '</' + k + '>' }}{% endfor %}{{ '</invoke>\\n' }}{% "
         "endfor %}"
         "{{ '</calls>' }}"},
    {.name = "a name and JSON in a section",
     .calls = "{{ '<｜tool▁calls▁begin｜>' }}{% for c in m.tool_calls %}"
              "{{ '<｜tool▁call▁begin｜>' + c.function.name + '<｜tool▁sep｜>' }}{{ c.function.arguments | "
              "tojson }}"
              "{{ '<｜tool▁call▁end｜>' }}{% endfor %}{{ '<｜tool▁calls▁end｜>' }}"},
    {.name = "ids with names",
     .calls =
         "{{ '<|section|>' }}{% for c in m.tool_calls %}{{ '<|call|>' + c.id + '<|args|>' }}"
         "{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}"
         "{{ '<|call_end|>' }}{% endfor %}{{ '<|section_end|>' }}"},
    {.name = "a list with ids",
     .calls = "{{ '[TOOL_CALLS][' }}{% for c in m.tool_calls %}{{ '{\"name\": \"' + c.function.name + '\", "
              "\"arguments\": ' }}"
              "{{ c.function.arguments | tojson }}{{ ', \"id\": \"' + c.id + '\"}' }}{{ ', ' if not "
              "loop.last }}{% endfor %}"
              "{{ ']' }}",
     .think_open = "[THINK]",
     .think_close = "[/THINK]"},
    {.name = "names and JSON without an end",
     .calls =
         "{% for c in m.tool_calls %}{{ '[TOOL_CALLS]' + c.function.name + '[CALL_ID]' + c.id + '[ARGS]' }}"
         "{{ c.function.arguments | tojson }}{% endfor %}",
     .think_open = "[THINK]",
     .think_close = "[/THINK]"},
    {.name = "names as keys",
     .calls = "{{ '<|tools_prefix|>[' }}{% for c in m.tool_calls %}{{ '{\"' + c.function.name + '\": ' }}"
              "{{ c.function.arguments | tojson }}{{ '}' }}{{ ', ' if not loop.last }}{% endfor %}{{ "
              "']<|tools_suffix|>' }}"},
    {.name = "one call, bare",
     .calls = "{% if m.tool_calls | length > 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
              "{% set c = m.tool_calls[0] %}{{ '{\"name\": \"' + c.function.name + '\", \"parameters\": ' }}"
              "{{ c.function.arguments | tojson }}{{ '}' }}",
     .open = "<|start_header_id|>",
     .close = "<|eot_id|>"},
    {.name = "quotes of its own",
     .calls = "{% for c in m.tool_calls %}{{ '<|tool_call>call:' + c.function.name + '{' }}"
              "{% for k, v in c.function.arguments.items() %}{{ ',' if not loop.first }}{{ k + ':' }}"
              "{{ '<|\"|>' + v + '<|\"|>' if v is string else v | tojson }}{% endfor %}{{ '}<tool_call|>' "
              "}}{% endfor %}",
     .think_open = "<|channel>thought\n",
     .think_close = "<channel|>"},
    {.name = "Python",
     .calls = "{{ '<|tool_call_start|>[' }}{% for c in m.tool_calls %}{{ c.function.name + '(' }}"
              "{% for k, v in c.function.arguments.items() %}{{ ', ' if not loop.first }}{{ k + '=' }}"
              "{{ v | tojson }}{% endfor %}{{ ')' }}{{ ', ' if not loop.last }}{% endfor %}{{ "
              "']<|tool_call_end|>' }}"},
};

}  // namespace quire
