// libcurl of the system, opened when it is first needed.
#include <dlfcn.h>

#include <type_traits>

#include "hub/curl_api.h"

namespace moxie::hub {

Result<CurlApi> find_curl() {
  constexpr const char* kHint =
      "install it: the package libcurl4 on Debian and Ubuntu (libcurl4t64 in newer ones), libcurl "
      "on "
      "Fedora";
  void* library = nullptr;
  std::string why;
  // The second is Debian's build with another TLS library.
  for (const char* name : {"libcurl.so.4", "libcurl-gnutls.so.4"}) {
    library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    if (const char* text = ::dlerror(); text != nullptr && why.empty()) why = text;
  }
  if (library == nullptr)
    return fail("libcurl, which speaks HTTP, was not found: " + why, "libcurl", kHint);
  CurlApi api;
  why.clear();
  const auto find = [&](auto& function, const char* name) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr) why = name;
  };
  find(api.global_init, "curl_global_init");
  find(api.easy_init, "curl_easy_init");
  find(api.easy_reset, "curl_easy_reset");
  find(api.easy_cleanup, "curl_easy_cleanup");
  find(api.easy_setopt, "curl_easy_setopt");
  find(api.easy_perform, "curl_easy_perform");
  find(api.easy_getinfo, "curl_easy_getinfo");
  find(api.easy_strerror, "curl_easy_strerror");
  find(api.multi_init, "curl_multi_init");
  find(api.multi_cleanup, "curl_multi_cleanup");
  find(api.multi_setopt, "curl_multi_setopt");
  find(api.multi_add_handle, "curl_multi_add_handle");
  find(api.multi_remove_handle, "curl_multi_remove_handle");
  find(api.multi_socket_action, "curl_multi_socket_action");
  find(api.multi_info_read, "curl_multi_info_read");
  find(api.slist_append, "curl_slist_append");
  find(api.slist_free_all, "curl_slist_free_all");
  find(api.url, "curl_url");
  find(api.url_cleanup, "curl_url_cleanup");
  find(api.url_set, "curl_url_set");
  find(api.url_get, "curl_url_get");
  find(api.free, "curl_free");
  if (!why.empty()) {
    return fail("it is too old: it lacks " + why, "libcurl", "install a libcurl of 7.66 or newer");
  }
  return api;
}

}  // namespace moxie::hub
