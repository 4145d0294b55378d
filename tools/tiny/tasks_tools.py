"""Tool use: choosing one of several functions and filling its arguments, and answering from its result."""
import json

from phrasing import ask, expand, fill
from sample import Sample
import harmony as H
import tasks_chat as C
import tasks_json as J
from tasks_recall import sentence
import words as W

STR, NUM, INT, BOOL = "string", "number", "integer", "boolean"


def subject_text(rng):
    return " ".join(rng.choice(W.COMMON + W.NOUNS) for _ in range(rng.randint(1, 5)))


def short_message(rng):
    return rng.choice(["I will be late", "see you " + rng.choice(W.DAYS), "the " + rng.choice(W.NOUNS) + " is ready", "happy birthday", "call me back", "the meeting is at " + W.clock(rng), "thank you for the " + rng.choice(W.OBJECTS), subject_text(rng)])


def expression(rng):
    a, b, c = (rng.randint(1, 10 ** rng.randint(1, 4)) for _ in range(3))
    op = rng.choice("+-*/")
    if rng.random() < 0.25:
        a = round(a / 10, 1)
    return rng.choice([f"{a} {op} {b}", f"{a} {op} {b}", f"{a} {op} {b} {rng.choice('+-*')} {c}", f"({a} + {b}) * {c}", f"{a}{op}{b}"])


def path(rng):
    return rng.choice(["", "/", "docs/", "/home/user/", "data/"]) + rng.choice(W.NOUNS) + rng.choice(["", "_" + rng.choice(W.NOUNS), str(rng.randint(1, 99))]) + "." + rng.choice(["txt", "csv", "json", "md", "py", "log"])


def day_word(rng):
    return rng.choice(["today", "tomorrow", W.iso_date(rng), rng.choice(W.DAYS)])


CURRENCY = J.choice_of("USD", "EUR", "GBP", "JPY", "CHF", "CAD", "AUD", "CNY", "INR", "SEK")
LANGUAGE = J.choice_of("French", "German", "Spanish", "Italian", "English", "Dutch", "Japanese", "Polish", "Turkish", "Greek")
# (names, descriptions, parameters, requests, result maker or None); a parameter: (names, type, description, maker, phrase if optional else None)
CATALOG = [
    (["get_weather", "get_current_weather", "weather", "fetch_weather", "current_weather", "lookup_weather"], ["Get the current weather for a city.", "Gets the weather in a location.", "Current weather of a place"],
     [(["location", "city", "place"], STR, "The city", W.city, None), (["unit", "format", "units"], ["celsius", "fahrenheit"], "Temperature unit", None, " in <v>")],
     ["{What is|What's|How is|Tell me|Check|How's} the {weather|temperature} {like |}in <1>{ now| today| right now|}{?|}", "{Is it|Will it be} {warm|cold|raining|sunny|hot|windy} in <1>{?|}", "<1> weather", "{I am going to|I travel to} <1>. {What is the weather there|Do I need an umbrella}?", "Weather {in|for} <1>"], "weather"),
    (["get_forecast", "weather_forecast", "forecast"], ["Weather forecast for some days.", "Get the forecast for a city"], [(["city", "location"], STR, "City name", W.city, None), (["days", "num_days"], INT, "Number of days", J.whole(1, 10), None)],
     ["{What is|Give me|Show me} the {forecast|weather forecast} for <1> for {the next |}<2> days{.|}", "<2>-day forecast for <1>"], None),
    (["calculate", "calculator", "evaluate", "compute", "eval_expression", "math"], ["Evaluate an arithmetic expression.", "Calculates the value of an expression.", "A calculator"], [(["expression", "expr", "input", "formula"], STR, "The expression", expression, None)],
     ["{What is|Calculate|Compute|Evaluate|Work out|What's} <1>{?|}", "{Use the calculator|Calculate}: <1>", "<1>"], "value"),
    (["send_email", "email", "send_mail", "compose_email"], ["Send an email.", "Sends a mail to somebody"], [(["to", "recipient", "address"], STR, "Address of the recipient", W.email, None), (["subject", "title"], STR, "Subject line", subject_text, None), (["body", "text", "message", "content"], STR, "Text of the mail", short_message, None)],
     ["{Send|Write} {an email|a mail|an e-mail} to <1> with {the |}subject \"<2>\" and {the |}{text|body|message} \"<3>\".", "{Email|Mail} <1>: subject <2>, text <3>", "{Please send|Send} <1> {an email|a mail} {titled|about} \"<2>\" {saying|that says} \"<3>\"."], "done"),
    (["send_message", "send_sms", "text_message", "message"], ["Send a text message to a person.", "Sends an SMS."], [(["to", "recipient", "contact", "name"], STR, "Who gets it", W.first_name, None), (["text", "message", "body"], STR, "What to say", short_message, None)],
     ["{Send|Write} {a message|a text|an SMS} to <1> {saying|that says}{: | }\"<2>\"{.|}", "{Text|Message} <1>: <2>", "{Tell|Let} <1> {know |}\"<2>\"{.|}".replace("{Tell|Let} <1> {know |}", "Tell <1> ")], "done"),
    (["get_time", "get_current_time", "current_time", "world_clock"], ["Get the current time in a city.", "Local time of a place"], [(["city", "timezone", "location"], STR, "City", W.city, None)], ["{What time is it|What's the time|Tell me the time|What is the current time|Time} in <1>{?|}", "{How late is it|What does the clock say} in <1>?"], "time"),
    (["convert_currency", "currency_convert", "exchange"], ["Convert an amount of money from one currency to another.", "Currency conversion"], [(["amount", "value"], NUM, "Amount of money", J.whole(1, 5000), None), (["from_currency", "source", "from"], STR, "Currency to convert from", CURRENCY, None), (["to_currency", "target", "to"], STR, "Currency to convert to", CURRENCY, None)],
     ["{Convert|Change} <1> <2> {to|into} <3>{.|}", "{How much|What} is <1> <2> in <3>?", "{I have <1> <2>. What is that|How many <3> are <1> <2>|What are <1> <2>} in <3>?".replace("How many <3> are <1> <2>|", "")], "value"),
    (["search", "web_search", "search_web", "google_search"], ["Search the web.", "Searches the internet for a query", "Look something up on the web."], [(["query", "q", "search_term", "text"], STR, "Search terms", lambda r: r.choice(W.TOPICS) if r.random() < .6 else W.full_name(r), None)],
     ["{Search|Look} {the web |online |the internet |}for <1>{.|}", "{Google|Search|Look up} <1>{.|}", "{Find|Find out} {something|information|more} {about|on} <1> {online|on the web}{.|}", "{Who is|What is|Tell me about|What are} <1>{?|}"], None),
    (["create_event", "add_event", "schedule_meeting", "add_to_calendar", "create_calendar_event"], ["Create a calendar event.", "Adds an event to the calendar"], [(["title", "name", "subject"], STR, "Title of the event", lambda r: r.choice(W.NOUNS) + " " + r.choice(["meeting", "review", "lunch", "call", "party"]), None), (["date", "day"], STR, "The date", day_word, None), (["time", "start_time", "start"], STR, "Start time", W.clock, None)],
     ["{Add|Create|Schedule|Plan|Put} {an event|a meeting|an appointment} {called |named |}\"<1>\" {on|for} <2> at <3>{.|}", "{Put|Add} <1> in my calendar {on|for} <2> at <3>.", "Schedule <1> {on|for} <2> at <3>"], "done"),
    (["set_alarm", "create_alarm", "alarm"], ["Set an alarm.", "Sets an alarm for a time of day"], [(["time", "at"], STR, "Time of day", W.clock, None), (["label", "name"], STR, "Name of the alarm", lambda r: r.choice(W.NOUNS), " with {the |}label <v>")], ["{Set|Create} an alarm for <1>", "Wake me {up |}at <1>", "{I need|Give me} an alarm at <1>"], "done"),
    (["set_timer", "start_timer", "timer"], ["Start a timer.", "Sets a countdown"], [(["minutes", "duration", "duration_minutes"], INT, "Minutes", J.whole(1, 120), None)], ["{Set|Start} a timer {for|of} <1> minutes{.|}", "{Remind me|Wake me|Tell me} in <1> minutes{.|}", "<1> minute timer"], "done"),
    (["create_reminder", "set_reminder", "remind", "add_reminder"], ["Create a reminder.", "Reminds the user of something"], [(["text", "task", "what"], STR, "What to remember", lambda r: "to " + r.choice(W.VERBS) + " the " + r.choice(W.NOUNS), None), (["date", "when", "day"], STR, "When", day_word, None)], ["Remind me <1> {on |}<2>{.|}".replace("{on |}", ""), "{Set|Create} a reminder <1> {for <2>|<2>}{.|}"], "done"),
    (["translate", "translate_text", "translator"], ["Translate text to a language.", "Translates a text"], [(["text", "input", "sentence"], STR, "Text to translate", short_message, None), (["language", "target_language", "to"], STR, "Target language", LANGUAGE, None)], ["Translate \"<1>\" {to|into} <2>{.|}", "{How do you say|What is} \"<1>\" in <2>?", "{Say|Put} \"<1>\" in <2>{.|}"], "text"),
    (["play_music", "play_song", "play", "music"], ["Play a song.", "Plays music by title and artist"], [(["song", "title", "track"], STR, "Title of the song", lambda r: r.choice(W.ADJECTIVES) + " " + r.choice(W.NOUNS), None), (["artist", "by"], STR, "Artist", W.full_name, " by <v>")], ["Play {the song |}\"<1>\"", "{I want to hear|Put on|Start} \"<1>\""], "done"),
    (["get_stock_price", "stock_price", "get_quote", "stock"], ["Get the price of a stock.", "Latest price of a share"], [(["symbol", "ticker"], STR, "Ticker symbol", lambda r: "".join(r.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(r.randint(2, 5))), None)], ["{What is|Get|Show me|What's} the {stock price|price|share price|quote} of <1>{?|}", "{How is|How much is} {the |}<1> {stock |share |}{doing|trading|worth}?", "<1> stock price", "What's {the company's|this|their} stock {trading at|worth}? The {ticker|symbol} is <1>.", "{Ticker|Symbol} <1>, {what is the price|how much}?"], "price"),
    (["read_file", "open_file", "get_file", "cat"], ["Read a file.", "Returns the contents of a file"], [(["path", "filename", "file"], STR, "Path of the file", path, None)], ["{Read|Open|Show me|Print|Show} {the file |}<1>{.|}", "What {is|does it say} in {the file |}<1>?", "{Show|Give} me {the contents of|what is in} <1>{.|}"], "text"),
    (["write_file", "save_file", "create_file"], ["Write text to a file.", "Saves a file"], [(["path", "filename", "file"], STR, "Path of the file", path, None), (["content", "text", "data"], STR, "What to write", short_message, None)], ["{Write|Save|Put} \"<2>\" {to|into|in} {the file |}<1>{.|}", "Create {a file|the file} <1> with {the text|the content} \"<2>\"{.|}"], "done"),
    (["delete_file", "remove_file", "rm"], ["Delete a file.", "Removes a file for good"], [(["path", "filename", "file"], STR, "Path of the file", path, None)], ["{Delete|Remove|Erase} {the file |}<1>{.|}", "{Get rid of|Throw away} {the file |}<1>{.|}"], "done"),
    (["list_files", "ls", "list_directory"], ["List the files of a folder.", "Shows what a directory holds"], [(["directory", "path", "folder"], STR, "The folder", lambda r: r.choice(["/", "docs", "data", "/home/user", r.choice(W.NOUNS), "src"]), None)], ["{List|Show} {the |all |}files {in|of} {the folder |the directory |}<1>{.|}", "{What|Which} files are in {the folder |}<1>?"], None),
    (["book_flight", "reserve_flight", "flight_booking"], ["Book a flight.", "Books a plane ticket"], [(["origin", "from", "from_city"], STR, "Where it starts", W.city, None), (["destination", "to", "to_city"], STR, "Where it goes", W.city, None), (["date", "departure_date", "day"], STR, "Day of the flight", day_word, None)], ["{Book|Reserve} {a flight|me a flight|a plane ticket} from <1> to <2> {on |for |}<3>{.|}".replace("{on |for |}", ""), "{I need|I want} {a flight|to fly} from <1> to <2> {on|for} <3>{.|}", "Flight <1> to <2>, <3>", "{I want to fly|Book a flight|I need a flight|Fly me} to <2> from <1> on <3>{.|}", "On <3> I {want to|have to|need to} fly from <1> to <2>{.|}", "{Find|Search} {me |}{a flight|flights} from <1> to <2> on <3>{.|}"], "done"),
    (["search_flights", "find_flights", "get_flights"], ["Search for flights.", "Find flights between two cities"], [(["origin", "from"], STR, "Start", W.city, None), (["destination", "to"], STR, "End", W.city, None)], ["{Find|Search|Show me|Search for|Are there} {flights|planes} from <1> to <2>{.|}", "{Which|What} flights {go|are there} from <1> to <2>?", "{I want to fly|Flights|Show flights} to <2> from <1>{.|}"], None),
    (["book_hotel", "reserve_hotel", "hotel_booking"], ["Book a hotel room.", "Reserve a room in a hotel"], [(["city", "location"], STR, "City", W.city, None), (["nights", "num_nights"], INT, "Number of nights", J.whole(1, 14), None), (["guests", "people"], INT, "Number of guests", J.whole(1, 6), " for <v> {people|guests|persons}")], ["{Book|Reserve|Find} {a hotel|a hotel room|a room} in <1> for <2> nights", "{I need|I want} {a hotel|a room} in <1> for <2> nights"], "done"),
    (["book_table", "reserve_table", "restaurant_booking"], ["Reserve a table in a restaurant.", "Books a table"], [(["restaurant", "name"], STR, "Restaurant", lambda r: "the " + r.choice(W.ADJECTIVES).capitalize() + " " + r.choice(W.ANIMALS + W.FOODS).capitalize(), None), (["people", "party_size", "guests"], INT, "Number of people", J.whole(1, 12), None), (["time", "at"], STR, "Time", W.clock, None)], ["{Book|Reserve} a table {at|in} <1> for <2> {people|persons} at <3>{.|}", "Table for <2> at <1>, <3>"], "done"),
    (["get_directions", "directions", "route", "navigate"], ["Get directions between two places.", "Finds a route"], [(["start", "origin", "from"], STR, "Start", W.city, None), (["end", "destination", "to"], STR, "Destination", W.city, None), (["mode", "travel_mode"], ["driving", "walking", "cycling", "transit"], "How to travel", None, " by <v>")], ["{How do I get|Show me the way|Give me directions|Directions|Navigate} from <1> to <2>", "{What is the way|Find a route} from <1> to <2>"], None),
    (["turn_on_light", "switch_light", "set_light", "control_light"], ["Switch a light on or off.", "Controls the lights of a room"], [(["room", "location"], STR, "The room", lambda r: r.choice(["kitchen", "bedroom", "bathroom", "office", "hall", "garage", "living room", "garden", "basement"]), None), (["on", "state", "turn_on"], BOOL, "True to switch on", None, None)], ["{Turn|Switch} <2> the {light|lights|lamp} in the <1>{.|}", "{Turn|Switch} the <1> {light|lights} <2>{.|}", "<1> {light|lights} <2>"], "done"),
    (["set_temperature", "set_thermostat", "heat"], ["Set the temperature of a room.", "Controls the heating"], [(["room", "zone"], STR, "The room", lambda r: r.choice(["kitchen", "bedroom", "bathroom", "office", "hall", "living room"]), None), (["temperature", "degrees", "target"], NUM, "Degrees", J.whole(10, 30), None)], ["{Set|Change|Heat} the {temperature in the |}<1> to <2> degrees{.|}", "Make {it|the temperature} <2> degrees in the <1>{.|}"], "done"),
    (["add_to_cart", "add_item", "cart_add"], ["Add a product to the cart.", "Puts an item in the shopping cart"], [(["item", "product", "name"], STR, "The product", lambda r: r.choice(W.OBJECTS + W.FRUITS), None), (["quantity", "count", "amount"], INT, "How many", J.whole(1, 20), None)], ["{Add|Put} <2> <1> {to|in|into} {my|the} {cart|basket}{.|}", "{I want to buy|Order|Buy} <2> <1>{.|}"], "done"),
    (["get_order_status", "order_status", "track_order", "track_package"], ["Get the status of an order.", "Tracks an order"], [(["order_id", "id", "order_number"], STR, "Number of the order", W.code, None)], ["{Where is|What is the status of|Track|Check|How is} {my |}order <1>{?|}", "{Has|Did} {my |}order <1> {arrive|ship|come}{ yet|}?".replace("{Has|Did}", "Did"), "order <1> status"], "status"),
    (["lookup_contact", "find_contact", "get_contact", "search_contacts"], ["Find a contact by name.", "Looks up a person in the address book"], [(["name", "person", "contact_name"], STR, "Name", W.full_name, None)], ["{Find|Look up|Search|Show me} {the contact |}<1>{ in my contacts|}{.|}", "{What is|Give me} the {phone number|number|address|email} of <1>{?|}", "How can I reach <1>?"], None),
    (["create_user", "add_user", "register_user"], ["Create a user account.", "Registers a new user"], [(["username", "name", "user"], STR, "Login name", lambda r: W.invented(r, 1, 2) + r.choice(["", str(r.randint(1, 99))]), None), (["age"], INT, "Age in years", J.whole(10, 90), " aged <v>"), (["admin", "is_admin"], BOOL, "Give admin rights", None, "")], ["{Create|Add|Register|Make} {a |the |an |a new |}{user|account|user account} {called |named |for |}<1>"], "done"),
    (["roll_dice", "dice", "throw_dice"], ["Roll dice.", "Throws dice and returns the sum"], [(["sides", "faces"], INT, "Sides of a die", J.choice_of(4, 6, 8, 10, 12, 20), None), (["count", "num_dice", "times"], INT, "How many dice", J.whole(1, 10), None)], ["{Roll|Throw} <2> dice with <1> sides{.|}", "{Roll|Throw} <2>d<1>"], "value"),
    (["random_number", "get_random_number", "pick_number"], ["Get a random number.", "Random number in a range"], [(["min", "low", "minimum"], INT, "Lowest", J.whole(0, 50), None), (["max", "high", "maximum"], INT, "Highest", J.whole(51, 1000), None)], ["{Pick|Give me|Choose} a {random |}number {between|from} <1> {and|to} <2>{.|}"], "value"),
    (["run_query", "query_database", "sql", "execute_sql"], ["Run a database query.", "Executes SQL"], [(["sql", "query", "statement"], STR, "SQL text", lambda r: f"SELECT {r.choice(W.NOUNS)} FROM {r.choice(W.NOUNS)}s" + r.choice(["", f" WHERE id = {r.randint(1, 999)}", f" LIMIT {r.randint(1, 100)}"]), None)], ["{Run|Execute} {the query|this SQL|this query|the SQL|}: <1>", "{Query the database|Ask the database}: <1>"], None),
    (["get_definition", "define_word", "dictionary", "lookup_word"], ["Look up a word in the dictionary.", "Definition of a word"], [(["word", "term"], STR, "The word", lambda r: r.choice(W.ALL_WORDS), None)], ["{Define|Look up} {the word |}\"<1>\"{.|}", "What {does|is the meaning of} {the word |}\"<1>\"{ mean|}?".replace("{does|is the meaning of}", "is the meaning of").replace("{ mean|}", ""), "What does {the word |}<1> mean{?|}"], "text"),
    (["add_todo", "create_task", "add_task", "new_task"], ["Add a task to the list.", "Creates a todo item"], [(["title", "task", "text"], STR, "The task", lambda r: r.choice(W.VERBS) + " the " + r.choice(W.NOUNS), None), (["priority"], ["low", "medium", "high"], "Priority", None, " with <v> priority")], ["{Add|Create|Put} {a task|the task|a todo}: <1>", "{Add|Put} \"<1>\" {to|on} my {list|todo list|tasks}"], "done"),
    (["convert_units", "unit_converter", "convert", "unit_convert"], ["Convert a value from one unit to another.", "Unit conversion"], [(["value", "amount", "number"], NUM, "The value", J.whole(1, 5000), None), (["from_unit", "from", "source_unit"], STR, "Unit to convert from", J.choice_of("km", "miles", "meters", "feet", "kg", "pounds", "liters", "gallons", "inches", "cm"), None), (["to_unit", "to", "target_unit"], STR, "Unit to convert to", J.choice_of("km", "miles", "meters", "feet", "kg", "pounds", "liters", "gallons", "inches", "cm"), None)], ["{Convert|Change} <1> <2> {to|into} <3>{.|}", "{How many <3> {are|is}|What is} <1> <2>{ in <3>|}?".replace("{ in <3>|}", "").replace("|What is}", "}"), "What is <1> <2> in <3>?"], "value"),
    (["get_distance", "distance", "calculate_distance"], ["Distance between two cities.", "Get the distance between places"], [(["from", "origin", "city1", "start"], STR, "First place", W.city, None), (["to", "destination", "city2", "end"], STR, "Second place", W.city, None)], ["{How far is it|What is the distance|Tell me the distance} from <1> to <2>{?|}", "{How far is <2> from <1>|Distance between <1> and <2>|How many km are between <1> and <2>}?".replace("How far is <2> from <1>|", "")], "value"),
    (["add", "add_numbers", "sum", "plus"], ["Add two numbers.", "Returns a + b"], [(["a", "x", "first"], NUM, "First number", J.whole(0, 9999), None), (["b", "y", "second"], NUM, "Second number", J.whole(0, 9999), None)], ["{What is|Calculate|Add|Compute} <1> {plus|+|and} <2>{?|}", "{Add <1> and <2>|Sum of <1> and <2>|<1> + <2>}"], "value"),
    (["multiply", "multiply_numbers", "times", "product"], ["Multiply two numbers.", "Returns a * b"], [(["a", "x", "first"], NUM, "First number", J.whole(0, 999), None), (["b", "y", "second"], NUM, "Second number", J.whole(0, 999), None)], ["{What is|Calculate|Compute} <1> {times|*|x|multiplied by} <2>{?|}", "{Multiply <1> by <2>|Multiply <1> and <2>|Product of <1> and <2>}"], "value"),
    (["get_population", "population", "country_population"], ["Population of a country.", "How many people live in a place"], [(["country", "place", "name"], STR, "Country", lambda r: r.choice(W.COUNTRIES), None)], ["{How many people live in|What is the population of} <1>{?|}", "Population of <1>"], "value"),
    (["get_capital", "capital", "lookup_capital"], ["Capital of a country."], [(["country", "name"], STR, "Country", lambda r: r.choice(W.COUNTRIES), None)], ["{What is|Tell me|Find} the capital of <1>{?|}", "capital of <1>"], "text"),
    (["find_restaurant", "search_restaurants", "restaurants"], ["Find restaurants.", "Search for places to eat"], [(["cuisine", "food", "type"], STR, "Kind of food", J.choice_of("Italian", "Chinese", "Indian", "Mexican", "Thai", "French", "Japanese", "Greek", "vegan"), None), (["city", "location", "near"], STR, "City", W.city, None)], ["{Find|Show me|Search for|I want} {a|an|some} <1> restaurant{s|} in <2>{.|}", "{Where can I eat|I want to eat} <1> {food |}in <2>{?|}"], None),
    (["find_recipe", "search_recipes", "get_recipe"], ["Find a recipe.", "Recipe search"], [(["ingredient", "dish", "query"], STR, "Ingredient or dish", lambda r: r.choice(W.FOODS), None)], ["{Find|Give me|Search|Show me} {a|the} recipe {for|with} <1>{.|}", "{How do I {cook|make}|What can I cook with} <1>{?|}"], None),
    (["set_volume", "change_volume", "volume"], ["Set the volume.", "Changes how loud it is"], [(["level", "volume", "percent"], INT, "Level from 0 to 100", J.whole(0, 100), None)], ["{Set|Turn|Change} the volume to <1>{.| percent|%}", "Volume <1>"], "done"),
    (["open_app", "launch_app", "start_app"], ["Open an app.", "Starts a program"], [(["name", "app", "app_name"], STR, "Name of the app", J.choice_of("camera", "calendar", "maps", "music", "mail", "notes", "photos", "calculator", "browser", "clock", "settings", "chess"), None)], ["{Open|Launch|Start|Run} {the |}<1>{ app|}{.|}"], "done"),
    (["take_note", "create_note", "add_note", "save_note"], ["Save a note.", "Writes a note"], [(["text", "note", "content"], STR, "Text of the note", short_message, None)], ["{Take|Make|Save|Write|Create} a note{: | that says | saying }\"<1>\"{.|}", "{Note|Write down}: <1>"], "done"),
    (["send_money", "transfer_money", "pay", "make_payment"], ["Send money to a person.", "Transfers money"], [(["to", "recipient", "payee"], STR, "Who gets it", W.first_name, None), (["amount", "sum"], NUM, "How much", J.whole(1, 2000), None)], ["{Send|Pay|Transfer} <2> {dollars|euros} to <1>{.|}", "{Send|Give} <1> <2> {dollars|euros}{.|}"], "done"),
    (["cancel_order", "order_cancel"], ["Cancel an order."], [(["order_id", "id", "order"], STR, "Number of the order", W.code, None)], ["{Cancel|Please cancel|I want to cancel} {my |the |}order <1>{.|}"], "done"),
    (["get_user", "find_user", "user_info", "lookup_user"], ["Get a user by id.", "Information on a user"], [(["user_id", "id"], INT, "Id of the user", J.whole(1, 99999), None)], ["{Get|Show|Find|Look up|Give me} {the |}user {with id |number |}<1>{.|}", "Who is user <1>?"], None),
    (["search_products", "find_products", "product_search"], ["Search the shop.", "Find products under a price"], [(["query", "product", "keyword"], STR, "What to look for", lambda r: r.choice(W.OBJECTS), None), (["max_price", "price_limit"], NUM, "Highest price", J.whole(5, 900), " under <v> {dollars|euros}")], ["{Find|Show me|Search for|I am looking for} {a |some |}<1>", "{Search the shop|Look} for <1>"], None),
    (["sum_list", "sum_numbers", "total"], ["Sum a list of numbers.", "Adds numbers"], [(["numbers", "values", "items"], "numbers", "The numbers", lambda r: [r.randint(0, 999) for _ in range(r.randint(2, 5))], None)], ["{Sum|Add|Total|Add up} <1>{.|}", "{What is the sum|Give me the total} of <1>?"], "value"),
    (["invite_people", "add_guests", "invite"], ["Invite people to an event.", "Adds guests"], [(["event", "title"], STR, "The event", lambda r: r.choice(W.NOUNS) + " " + r.choice(["meeting", "party", "lunch"]), None), (["people", "guests", "names"], "strings", "Names of the guests", lambda r: [W.first_name(r) for _ in range(r.randint(1, 4))], None)], ["Invite <2> to the <1>{.|}", "{Add|Put} <2> {to|on the list of} the <1>{.|}"], "done"),
    (["lock_door", "door_lock", "set_lock"], ["Lock a door.", "Locks a door of the house"], [(["door", "name"], STR, "Which door", J.choice_of("front", "back", "garage", "garden", "side", "main", "cellar"), None)], ["{Lock|Close and lock|Please lock} the <1> door{.|}"], "done"),
    (["get_movie", "movie_info", "find_movie"], ["Information on a movie."], [(["title", "name", "movie"], STR, "Title", lambda r: "The " + r.choice(W.ADJECTIVES).capitalize() + " " + r.choice(W.OBJECTS + W.ANIMALS).capitalize(), None), (["year"], INT, "Year", J.whole(1930, 2028), " from <v>")], ["{Find|Look up|Tell me about|Show me} the movie \"<1>\"", "{Who made|What is} the movie \"<1>\""], None),
    (["get_news", "news", "latest_news", "headlines"], ["Get news about a topic.", "Latest headlines"], [(["topic", "category", "subject"], STR, "Topic", lambda r: r.choice(W.TOPICS), None)], ["{What is|What's|Get|Show me|Give me} the {latest |}news {about|on} <1>{?|}", "{Any|Is there} news {about|on} <1>?"], None),
]


class Slot:
    """A parameter with its value, as the schema, the request and the arguments see it."""

    def __init__(self, rng, names, kind, description, maker, phrase):
        self.name = names[0] if rng.random() < 0.5 else rng.choice(names)
        self.example = maker(rng) if maker and rng.random() < 0.15 else None
        self.kind, self.description, self.phrase, self.optional = kind, description, phrase, phrase is not None
        if isinstance(kind, list):
            self.value = rng.choice(kind)
            self.said = self.value
        elif kind == BOOL:
            self.value = rng.random() < 0.5
            self.said = "on" if self.value else "off"
            self.phrase = (" with admin rights" if self.value else " without admin rights") if self.phrase == "" else self.phrase
        else:
            self.value = maker(rng)
            self.said = ", ".join(map(str, self.value[:-1])) + " and " + str(self.value[-1]) if isinstance(self.value, list) and len(self.value) > 1 else str(self.value[0]) if isinstance(self.value, list) else str(self.value)

    def schema(self, described):
        s = {"type": STR, "enum": self.kind} if isinstance(self.kind, list) else {"type": "array", "items": {"type": NUM if self.kind == "numbers" else STR}} if self.kind in ("numbers", "strings") else {"type": self.kind}
        if described:
            s["description"] = self.description + (f", e.g. {self.example}" if self.example and isinstance(self.example, str) else "")
        return s


def tool_schema(rng, name, description, slots):
    described = rng.random() < 0.65
    params = {"type": "object", "properties": {s.name: s.schema(described) for s in slots}}
    required = [s.name for s in slots if not s.optional]
    if required or rng.random() < 0.5:
        params["required"] = required
    for s in slots:
        if s.optional and isinstance(s.kind, list) and rng.random() < 0.3:
            params["properties"][s.name]["default"] = s.kind[0]
    return {"name": name, "description": description, "parameters": params} if description else {"name": name, "parameters": params}


def from_catalog(rng, entry):
    """A tool of the catalog: (schema, request, arguments, kind of result)."""
    names, descriptions, params, requests, result = entry
    slots = [Slot(rng, *p) for p in params]
    if len({s.name for s in slots}) < len(slots):
        slots = [Slot(rng, [p[0][0]], *p[1:]) for p in params]
    name = names[0] if rng.random() < 0.4 else rng.choice(names)
    schema = tool_schema(rng, name, rng.choice(descriptions), slots)
    template, values, args = rng.choice(requests), {}, {}
    for i, s in enumerate(slots):
        values[str(i + 1)] = s.said
        if not s.optional:
            args[s.name] = s.value
        elif rng.random() < 0.4 and not template.endswith(("?", "{?|}", ".", "{.|}")):
            values[f"v{i}"] = s.said
            template += expand(rng, s.phrase).replace("<v>", f"<v{i}>")
            args[s.name] = s.value
    return schema, ask(rng, template, **values), args, result


def invented_tool(rng):
    """A tool made of a verb and a noun with any parameters, asked for in plain words."""
    verb, noun = rng.choice(W.VERBS), rng.choice(W.NOUNS)
    name = rng.choice([f"{verb}_{noun}", f"{verb}_{noun}", f"{verb}{noun.capitalize()}", f"{noun}_{verb}", f"{verb}_{rng.choice(W.ADJECTIVES)}_{noun}"])
    description = rng.choice([f"{verb.capitalize()} a {noun}.", f"{verb.capitalize()} the {noun}", f"Use this to {verb} a {noun}.", f"{verb.capitalize()}s {W.plural(noun)}.", ""])
    pool = [("name", STR, W.full_name), ("id", INT, J.whole(1, 99999)), ("code", STR, W.code), ("count", INT, J.whole(1, 100)), ("amount", NUM, J.decimal(1, 500, 2)), ("date", STR, W.iso_date), ("city", STR, W.city), ("email", STR, W.email), ("color", STR, lambda r: r.choice(W.COLORS)), ("title", STR, lambda r: r.choice(W.ADJECTIVES) + " " + r.choice(W.NOUNS)),
            ("size", ["small", "medium", "large"], None), ("level", ["low", "medium", "high"], None), ("owner", STR, W.first_name), ("time", STR, W.clock), ("path", STR, path), ("tags", "array", lambda r: r.sample(W.ADJECTIVES, r.randint(1, 3))), (rng.choice(W.NOUNS), STR, lambda r: r.choice(W.ALL_WORDS)), (rng.choice(W.NOUNS) + "_id", STR, W.code), (W.invented(rng, 1, 2), STR, W.code)]
    picked = {p[0]: p for p in rng.sample(pool, rng.choice([0, 1, 1, 2, 2, 3]))}
    props, args, said = {}, {}, []
    described = rng.random() < 0.4
    for key, (_, kind, maker) in picked.items():
        if isinstance(kind, list):
            props[key], value = {"type": STR, "enum": kind}, rng.choice(kind)
        elif kind == "array":
            props[key], value = {"type": "array", "items": {"type": STR}}, maker(rng)
        else:
            props[key], value = {"type": kind}, maker(rng)
        if described:
            props[key]["description"] = f"The {key.replace('_', ' ')}"
        args[key] = value
        said.append((key.replace("_", " ") if rng.random() < 0.7 else key, J.value_text(value)))
    link = rng.choice([" ", " ", " = ", ": ", " is "])
    parts = [f"{k}{link}{v}" for k, v in said]
    tail = "" if not parts else rng.choice([" with ", " with ", ", ", " for "]) + (parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1])
    request = ask(rng, "{Please |Can you |Could you |I want to |I need to |Now |}<verb> {the|a|my|this} <noun><tail>{.||}" if rng.random() < 0.85 else "{Use|Call|Run} <name><tail>{.|}", verb=verb, noun=noun, tail=tail, name=name)
    params = {"type": "object", "properties": props}
    if props:
        params["required"] = list(props)
    if not props and rng.random() < 0.4:
        params = None
    return {"name": name, "description": description, "parameters": params}, request, args, rng.choice(["done", None])


def any_tool(rng):
    return from_catalog(rng, rng.choice(CATALOG)) if rng.random() < 0.72 else invented_tool(rng)


def others(rng, names, count):
    """Distractors: tools of other names than those given, and of other families in the catalog."""
    out, taken = [], set(names)
    families = [e for e in CATALOG if not taken & set(e[0])]
    while len(out) < count:
        schema = from_catalog(rng, families.pop(rng.randrange(len(families))))[0] if rng.random() < 0.65 else invented_tool(rng)[0]
        if schema["name"] not in taken and not any(schema["name"].split("_")[0] == n.split("_")[0] and schema["name"].split("_")[-1] == n.split("_")[-1] for n in taken):
            out.append(schema)
            taken.add(schema["name"])
    return out


def family(name):
    for e in CATALOG:
        if name in e[0]:
            return e[0]
    return [name]


def offered(rng, schema):
    """The tool among others in random order."""
    tools = others(rng, family(schema["name"]) + [schema["name"]], rng.choice([0, 1, 1, 2, 2, 3, 4, 5])) + [schema]
    rng.shuffle(tools)
    return tools


def call_thought(tools, name, args, effort):
    filled = ", ".join(f"{k} {json.dumps(v, ensure_ascii=False)}" for k, v in args.items())
    text = f"I call {name}" + (f" with {filled}." if args else " without arguments.")
    if effort == "high":
        text = f"The tools are {', '.join(t['name'] for t in tools)}. The fitting one is {name}. " + text
    return text


def tool_call(rng, effort):
    schema, request, args, _ = any_tool(rng)
    tools = offered(rng, schema)
    name = schema["name"]
    if rng.random() < 0.08:
        request = rng.choice(["I am planning something. ", "My boss asks for this. ", "Okay, next. ", "I am in a hurry. ", "One more thing. ", "My friend wants to know: ", sentence(rng) + " "]) + request
    return Sample(request, "", ("call", name, args), call_thought(tools, name, args, effort), tools=tools, call=(name, json.dumps(args, ensure_ascii=False)), styled=False)


def no_tool(rng, effort):
    """Tools are there, but the question needs none."""
    tools = others(rng, ["search", "web_search", "search_web", "google_search", "get_weather", "weather", "get_news", "get_time", "translate", "get_definition", "play_music", "read_file", "send_message", "get_stock_price", "lookup_contact", "get_forecast"], rng.randint(1, 4))
    s = C.small_talk(rng, effort) if rng.random() < 0.75 else C.told_before(rng, effort)
    s.tools = tools
    s.analysis = "No tool is needed. " + s.analysis
    return s


def needs_more(rng, effort):
    """A required argument is missing: ask for it."""
    bare = {"get_weather": "{What is|How is|What's} the weather{?|}", "get_time": "{Use the clock|Look at the clock|Check the time there}", "set_timer": "{Set|Start} a timer{.|}", "set_alarm": "{Set|Create} an alarm{.|}", "get_stock_price": "{What is|Get} the {stock|share} price{?|}", "read_file": "{Read|Open} {the|a|my} file{.|}",
            "delete_file": "{Delete|Remove} {the|a|my} file{.|}", "get_order_status": "{Where is|What is the status of|Track} my order{?|}", "book_hotel": "{Book|Reserve} {a hotel|a room}{.|}", "send_message": "{Send|Write} a message{.|}", "send_email": "{Send|Write} an email{.|}", "book_flight": "{Book|Reserve} a flight{.|}"}
    key = rng.choice(list(bare))
    entry = next(e for e in CATALOG if e[0][0] == key)
    schema = from_catalog(rng, entry)[0]
    required = schema["parameters"].get("required", [])
    words = [r.replace("_", " ") for r in required]
    final = "Please tell me the " + (words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]) + "."
    return Sample(ask(rng, bare[key]), final, ("exact", final), f"For {schema['name']} I need {', '.join(required)}, and the question does not give that.", final, tools=offered(rng, schema), styled=False)


def result_of(rng, kind, args):
    """A tool's result as text, and the answer that a person would want: (text, final, value)."""
    r = rng.random()
    if r < 0.1:
        error = rng.choice(["not found", "timeout", "no connection", "permission denied", "invalid argument", "service unavailable", "unknown " + rng.choice(W.NOUNS), "quota exceeded"])
        return json.dumps({"error": error}), f"The tool failed: {error}.", error
    if kind == "weather":
        place = next(iter(args.values()))
        t, c = rng.randint(-15, 40), rng.choice(["sunny", "cloudy", "rainy", "snowy", "windy", "foggy", "clear", "stormy", "partly cloudy"])
        tk, ck = rng.choice(["temperature", "temp", "degrees"]), rng.choice(["condition", "conditions", "sky", "weather", "description"])
        obj = {tk: t, ck: c}
        if rng.random() < 0.4:
            obj = {rng.choice(["city", "location"]): place, **obj}
        if rng.random() < 0.3:
            obj["humidity"] = rng.randint(10, 100)
        if rng.random() < 0.25:
            return f"{c}, {t} degrees", f"It is {t} degrees and {c} in {place}.", str(t)
        return json.dumps(obj, ensure_ascii=False), f"It is {t} degrees and {c} in {place}.", str(t)
    if kind == "value":
        v = rng.choice([rng.randint(0, 99999), round(rng.uniform(0, 1000), 2)])
        text = rng.choice([str(v), json.dumps({rng.choice(["result", "value", "answer", "output"]): v})])
        return text, f"The result is {v}.", str(v)
    if kind == "time":
        v = W.clock(rng)
        place = next(iter(args.values()))
        return rng.choice([v, json.dumps({rng.choice(["time", "local_time", "now"]): v})]), f"It is {v} in {place}.", v
    if kind == "price":
        v = round(rng.uniform(1, 900), 2)
        place = next(iter(args.values()))
        return rng.choice([str(v), json.dumps({rng.choice(["price", "last", "value"]): v})]), f"The price of {place} is {v}.", str(v)
    if kind == "text":
        v = " ".join(rng.choice(W.COMMON + W.NOUNS) for _ in range(rng.randint(1, 8)))
        return rng.choice([v, json.dumps({rng.choice(["text", "content", "result", "translation", "output"]): v})]), f"The result is: {v}", v
    if kind == "status":
        v = rng.choice(["shipped", "delivered", "open", "cancelled", "on the way", "paid", "lost"])
        return rng.choice([v, json.dumps({"status": v})]), f"The status is: {v}.", v
    if kind == "done" and rng.random() < 0.75:
        return rng.choice(["ok", "done", "success", json.dumps({"status": "ok"}), json.dumps({"success": True}), json.dumps({"ok": True}), json.dumps({"status": "success"}), json.dumps({"result": "done"})]), "Done.", "Done"
    if rng.random() < 0.25:
        items = rng.sample(W.ALL_WORDS, rng.randint(1, 5))
        key = rng.choice(["results", "items", "files", "names", "matches", "list"])
        return rng.choice([json.dumps(items), json.dumps({key: items})]), f"I found {len(items)}: {', '.join(items)}.", items[-1]
    obj = {}
    for _ in range(rng.randint(1, 4)):
        keys, words, _, maker, _ = rng.choice(J.PERSON[:7] + J.PRODUCT[:5] + J.EVENT[:4] + [J.invented_field(rng), J.invented_field(rng)])
        obj.setdefault(keys[0], maker(rng))
    final = "The result: " + ", ".join(f"{k.replace('_', ' ')} {J.value_text(v)}" for k, v in obj.items()) + "."
    return json.dumps(obj, ensure_ascii=False), final, J.value_text(list(obj.values())[-1])


def from_result(rng, effort):
    """The call is made and its result is there: answer."""
    schema, request, args, kind = any_tool(rng)
    tools = offered(rng, schema)
    name = schema["name"]
    text, final, value = result_of(rng, kind if args else None, args)
    after = []
    if effort != "low":
        after.append(H.message("assistant", call_thought(tools, name, args, effort), "analysis"))
    after.append(H.call_history(name, json.dumps(args, ensure_ascii=False, separators=rng.choice([(", ", ": "), (",", ":")]))))
    after.append(H.tool_result(name, text))
    return Sample(request, final, ("text", value), f"{name} returned a result. I answer from it.", value, tools=tools, after=after, styled=False)


def tools(rng, effort):
    r = rng.random()
    return tool_call(rng, effort) if r < 0.62 else from_result(rng, effort) if r < 0.86 else no_tool(rng, effort) if r < 0.95 else needs_more(rng, effort)
