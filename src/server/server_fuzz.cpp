// Fuzzes what a client can send: the bytes of an HTTP request, and the JSON bodies of every
// endpoint; the first byte chooses. No input may crash, and no parse error may be a 5xx.
#include <cstdint>
#include <string>
#include <string_view>

#include "server/anthropic.h"
#include "server/http.h"
#include "server/requests.h"
#include "server/responses.h"
#include "text/utf8.h"

namespace {

using namespace moxie;

template <class T>
void check(const Api<T>& read) {
  if (read) return;
  const ApiError& error = read.error();
  CHECK(error.status >= 400 && error.status < 500, error.message);
  CHECK(!error.message.empty());
  for (const ErrorForm form : {ErrorForm::kOpenAi, ErrorForm::kAnthropic}) {
    CHECK(is_valid_utf8(error_response(error, form).body));
  }
}

void read_http(std::string_view bytes) {
  HttpLimits limits;
  limits.header_bytes = 1024;
  limits.body_bytes = 4096;
  const HttpProbe probe = probe_http(bytes, limits);
  CHECK(probe.status == 0 || (probe.status >= 400 && probe.status < 500));
  CHECK(!probe.complete || probe.request.body.size() <= limits.body_bytes);
  CHECK(!probe.complete || probe.request.path.find('\0') == std::string::npos);
  if (!probe.complete) return;
  CHECK(!probe.request.id.empty() && probe.request.id.size() <= 128);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  const int kind = data[0] % 8;
  if (kind == 0) {
    read_http(text);
    return 0;
  }
  const auto document = parse_body(text);
  check(document);
  if (!document) return 0;
  switch (kind) {
    case 1:
      check(read_chat_request(*document));
      break;
    case 2:
      check(read_completion_request(*document));
      break;
    case 3:
      check(read_response_request(*document, [](const std::string&) { return StoredPtr(); }));
      break;
    case 4:
      check(read_messages_request(*document, false));
      break;
    case 5:
      check(read_tokenize_request(*document));
      break;
    case 6:
      check(read_detokenize_request(*document));
      break;
    default:
      check(read_messages_request(*document, true));
  }
  return 0;
}
