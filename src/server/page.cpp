// GET /: the page, one file that is part of the program.
//
// Its policy allows the page's own script and style, known by their hashes, and requests to this
// server, so that nothing else can run in it or be fetched by it.
#include <algorithm>
#include <string>
#include <string_view>

#include "page_data.h"
#include "server/endpoints.h"

extern "C" {
extern const char moxie_page_begin[], moxie_page_end[];
extern const char moxie_page_gzip_begin[], moxie_page_gzip_end[];
}

namespace moxie {
namespace {

std::string_view trimmed(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
  text.remove_prefix(begin);
  return text.substr(0, text.find_last_not_of(" \t") + 1);
}

/// Takes the item before the next comma off a header's list.
std::string_view next_item(std::string_view* list) {
  const std::string_view item = list->substr(0, list->find(','));
  list->remove_prefix(std::min(item.size() + 1, list->size()));
  return trimmed(item);
}

/// Whether a client takes gzip: it is named with a weight that is not 0.
bool accepts_gzip(std::string_view accepted) {
  while (!accepted.empty()) {
    const std::string_view item = next_item(&accepted);
    const size_t semicolon = item.find(';');
    if (!equals_ignoring_case(trimmed(item.substr(0, semicolon)), "gzip")) continue;
    if (semicolon == item.npos) return true;
    const std::string_view weight = trimmed(item.substr(semicolon + 1));
    return !weight.starts_with("q=") || weight.substr(2).find_first_of("123456789") != weight.npos;
  }
  return false;
}

bool names_tag(std::string_view known, std::string_view tag) {
  while (!known.empty()) {
    std::string_view item = next_item(&known);
    if (item.starts_with("W/")) item.remove_prefix(2);
    if (item == tag || item == "*") return true;
  }
  return false;
}

}  // namespace

void handle_page(App&, const ExchangePtr& exchange) {
  const HttpRequest& request = exchange->request();
  const bool gzip = accepts_gzip(request.header("Accept-Encoding"));
  const std::string tag = gzip ? kPageGzipTag : kPageTag;
  HttpResponse response{.content_type = "text/html; charset=utf-8"};
  response.headers = {{"ETag", tag},
                      {"Cache-Control", "no-cache"},
                      {"Vary", "Accept-Encoding"},
                      {"Content-Security-Policy", kPagePolicy},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"}};
  if (names_tag(request.header("If-None-Match"), tag)) {
    response.status = 304;
    response.content_type = "";
    return exchange->respond(std::move(response));
  }
  if (gzip) response.headers.push_back({"Content-Encoding", "gzip"});
  response.body = gzip ? std::string(moxie_page_gzip_begin, moxie_page_gzip_end)
                       : std::string(moxie_page_begin, moxie_page_end);
  exchange->respond(std::move(response));
}

}  // namespace moxie
