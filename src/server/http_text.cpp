// Parses texts of requests: targets, ids, traces, names of headers.
#include <algorithm>
#include <random>

#include "server/http.h"

namespace moxie {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (lower(c) >= 'a' && lower(c) <= 'f') return lower(c) - 'a' + 10;
  return -1;
}

// A client's request id is written to logs and headers: plain characters only.
bool is_request_id(std::string_view text) {
  return !text.empty() && text.size() <= 128 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || (lower(c) >= 'a' && lower(c) <= 'z') || c == '-' || c == '_' ||
           c == '.' || c == ':';
  });
}

// RFC 9112, 3.2.2: of a target with scheme and host the path and the query count.
std::string origin_form(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!equals_ignoring_case(target.substr(0, scheme.size()), scheme)) continue;
    const std::string_view rest = target.substr(scheme.size());
    const size_t host_size = std::min(rest.find_first_of("/?"), rest.size());
    if (host_size == 0) break;
    const std::string_view path = rest.substr(host_size);
    return (path.starts_with('/') ? "" : "/") + std::string(path);
  }
  return std::string(target);
}

}  // namespace

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(),
                                            [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view HttpRequest::header(std::string_view name) const {
  for (const HttpHeader& header : headers) {
    if (equals_ignoring_case(header.name, name)) return header.value;
  }
  return {};
}

bool percent_decode(std::string_view text, std::string* out) {
  out->clear();
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      *out += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
    if (high < 0 || low < 0 || (high == 0 && low == 0)) return false;
    *out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return true;
}

bool complete_request(HttpRequest& request) {
  const std::string_view given = request.header("X-Request-Id");
  request.id = is_request_id(given) ? std::string(given) : "req_" + random_name(24);
  request.trace_id = trace_id_of(request.header("traceparent"));
  request.target = origin_form(request.target);
  const size_t question = request.target.find('?');
  request.query = question == std::string::npos ? "" : request.target.substr(question + 1);
  return request.target.starts_with('/') &&
         percent_decode(std::string_view(request.target).substr(0, question), &request.path);
}

std::string trace_id_of(std::string_view text) {
  // 00-<32 hex>-<16 hex>-<2 hex>; later versions may append fields.
  constexpr size_t kSize = 55;
  if (text.size() < kSize || text[2] != '-' || text[35] != '-' || text[52] != '-') return {};
  if (text.size() > kSize && (text.starts_with("00") || text[kSize] != '-')) return {};
  if (text.starts_with("ff")) return {};
  for (size_t i = 0; i < kSize; ++i) {
    if (i == 2 || i == 35 || i == 52) continue;
    if (hex_digit(text[i]) < 0 || lower(text[i]) != text[i]) return {};
  }
  const std::string_view trace = text.substr(3, 32), parent = text.substr(36, 16);
  if (trace.find_first_not_of('0') == trace.npos) return {};
  if (parent.find_first_not_of('0') == parent.npos) return {};
  return std::string(trace);
}

std::string random_name(size_t count) {
  thread_local std::mt19937_64 generator(std::random_device{}());
  constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::string name(count, ' ');
  for (char& c : name) c = kLetters[generator() % kLetters.size()];
  return name;
}

}  // namespace moxie
