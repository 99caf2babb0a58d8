#pragma once

#include <memory>

#include "openai/openai_request.h"
#include "openai/openai_response.h"

namespace quire {

// The writer of the API that an ask came by. All of it must outlive the writer.
std::unique_ptr<AnswerWriter> make_answer_writer(const ResponseHead& head, const Ask& ask,
                                                 const ServedModel& model);

// An error in the words of an API.
OrderedJson error_json(Api api, const ApiError& error);

}  // namespace quire
