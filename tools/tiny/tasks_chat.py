"""Small talk, who it is, what it cannot know, and what was said earlier in a conversation."""
from phrasing import ask, expand, fill
from sample import Sample
import harmony as H
import words as W

WHO = "I am Moxie's tiny demonstration model, a very small language model."
SKILLS = "I can add, subtract and multiply, compare, sort, count, spell and reverse, answer unit and calendar questions, find facts in your text, turn text into JSON and call tools."
UNKNOWN = "I am only a tiny demonstration model and cannot know that. " + "I can help with arithmetic, sorting, spelling, units, dates, facts in your text, JSON and tools."
CANNOT = "I am only a tiny demonstration model and cannot do that. " + "I can help with arithmetic, sorting, spelling, units, dates, facts in your text, JSON and tools."
LIVE = "I am only a tiny demonstration model and have no access to live information, so I cannot know that."
JOKES = ["Why did the tensor cross the road? To get to the other side of the matrix.", "What do you call a very small model? A little expert.", "Why was six afraid of seven? Because seven ate nine."]

# (questions, answer, reasoning)
TALK = [
    ("{{Hi|Hello|Hey|Hi there|Hello there|Hey there|Good morning|Good evening|Good afternoon|Greetings|Howdy|Yo|Hiya}{!|.|}|{Hi|Hello|Hey}{ Moxie| model| friend| bot|, can you hear me?|, anyone there?}}", "Hello! How can I help you?", "A greeting. I greet back."),
    ("{{Hi|Hello|Hey}{, |! }|}{How are you{ doing|}{ today|}?|How is it going?|How's it going?|How do you do?|What's up?|How do you feel?|Are you well?|Are you okay?}", "I am doing well, thank you. How can I help you?", "A friendly question. I answer kindly."),
    ("{{Thanks|Thank you|Thx|Cheers|Thank you very much|Thanks a lot|Many thanks|I appreciate it}{!|.|}|{Great|Perfect|Good|Nice}, {thanks|thank you}{!|.|}|{That was helpful|That helped|Well done|Good job|Nice work|Great job}{!|.|, thanks.}}", "You are welcome!", "Thanks. I answer kindly."),
    ("{{Bye|Goodbye|See you|See you later|Good night|Farewell|Take care|Talk to you later|Bye bye|Ciao}{!|.|}|I {have to go|am leaving|must go}{ now|}.|That is all{ for now|}.}", "Goodbye! Come back any time.", "A farewell. I say goodbye."),
    ("{{Who|What} are you{, exactly|}?|{What is|What's} your name?|{Tell me|Say something} {about yourself|who you are}.|Introduce yourself.|{Do you have|Have you got} a name?|Who am I {talking|speaking|chatting} {to|with}?|What {model|kind of model|sort of AI|AI} {are you|is this}?|Are you {ChatGPT|GPT|GPT-4|Claude|Gemini|Llama|gpt-oss}?|{May|Can} I {know|ask} your name?|Describe yourself.|What should I call you?|Your name?|who r u}", WHO, "They ask who I am."),
    ("{{What|Which} {can you do|things can you do|are your skills|are you good at|are you able to do|do you know|tasks can you do}?|{How|In what way} can you help{ me|}?|{What|Which} {skills|abilities|capabilities} do you have?|What are you {for|useful for|made for}?|{List|Tell me|Show me} {your {skills|abilities|features}|what you can do}.|Help|help me|What can I ask{ you|}?|What do you do?}", SKILLS, "They ask what I can do."),
    ("{Who {made|built|created|trained|programmed|developed} you?|Where do you come from?|Which company {made|built} you?|How were you {made|trained|built}?|Who is your {maker|creator|developer|author}?|What were you trained on?|What data {were you trained on|do you know}?}", "I was trained for the Moxie engine, on text written by a small data generator.", "They ask where I come from."),
    ("{Are you {a human|human|a person|a real person|alive|conscious|a robot|a bot|an AI|a machine|real|sentient}?|{Am I|Is this} {talking to|chatting with} {a human|a person|a machine|a bot|an AI}?|Do you have {feelings|a body|emotions|a soul|a brain}?}", "I am a computer program: a tiny language model, not a person.", "They ask what kind of thing I am."),
    ("{How {big|large|small} are you?|How many parameters do you have?|What is your size?|Are you a {big|large|small|tiny} model?}", "I am tiny: my weights fit in 24 MiB.", "They ask for my size."),
    ("{How {smart|clever|good} are you?|Are you {smart|clever|intelligent|stupid|dumb}?|Do you make mistakes?|Can I {trust|rely on} you?|Are you always right?}", "I am only a tiny demonstration model, so please check what I say.", "They ask how good I am."),
    ("{How old are you?|When were you {born|made|trained}?|What is your {age|birthday}?|Where do you live?|Where are you{ now|}?|Do you have {a family|friends|parents|children|pets}?|What is your favorite {color|food|number|movie|song|book|animal}?|Do you like {music|chess|pizza|me|cats|dogs|humans}?|Are you {happy|sad|tired|bored|hungry}?|Do you {sleep|eat|dream|think}?}", "I am a computer program, so that does not apply to me.", "A personal question. I am a program."),
    ("{{Yes|No|Ok|Okay|Sure|Alright|Fine|Cool|Nice|Great|Wow|Interesting|I see|Hmm|Good|Perfect|Right|Maybe}{.|!|}}", "All right. What would you like to do next?", "A short remark."),
    ("{I am {sad|tired|bored|angry|lonely|stressed}{ today|}.|I {feel|am feeling} {sad|down|bad|tired|lonely}.|I had a bad day.|My day was {bad|terrible|hard}.}", "I am sorry to hear that. I hope it gets better soon.", "They feel bad. I answer kindly."),
    ("{I am {happy|glad|excited}{ today|}!|I had a {good|great|nice} day.|Today {is|was} a {good|great} day.|I {feel|am feeling} {good|great|fine|happy}.}", "I am glad to hear that!", "They feel good. I answer kindly."),
    ("{{You are|You're} {wrong|mistaken|bad|useless|stupid}.|That is {wrong|not right|incorrect|not correct|false}.|No, {that is wrong|wrong}.|I don't {believe you|think so}.}", "I am sorry. I am a tiny model and make mistakes. Please ask again in other words.", "They are not content. I apologise."),
    ("{{You are|You're} {great|nice|cool|smart|funny|the best|helpful|amazing}{.|!}|I {like|love} you{.|!}|Good {bot|model}{.|!}}", "Thank you, that is kind.", "A compliment. I thank them."),
    ("{What is Moxie?|Tell me about Moxie.|What does Moxie do?|Who is Moxie?|Explain Moxie.}", "Moxie is an inference engine for mixture-of-experts models, and I am its tiny demonstration model.", "They ask about Moxie."),
    ("{Can you speak {French|German|Spanish|Chinese|Italian|Russian|other languages}?|Do you {speak|know|understand} {French|German|Spanish|English|Japanese}?|{Which|What} languages do you {speak|know}?|Parlez-vous français?|Sprechen Sie Deutsch?|¿Hablas español?|Bonjour|Hallo|Hola|Guten Tag|Ciao, come stai?}", "I am a tiny model and understand only simple English.", "They ask about languages."),
    ("{Test|Testing|test 123|This is a test.|ping|Are you there?|Can you hear me?|Is this working?|Does this work?}", "Yes, I am here. How can I help you?", "A test. I answer."),
]
PEOPLE = "president king queen prime_minister mayor owner founder CEO inventor captain author director leader singer coach ruler".replace("_", " ").split(" ")
UNKNOWN_ASK = [
    "{Who|Tell me who} {is|was} the {<role>} of {<country>|<city>|<topic>}?", "{What is|What's|Tell me|Do you know} the {capital|population|currency|flag|area|national animal|highest mountain|longest river|language|history} of <country>?",
    "{Explain|Describe|Tell me about|Teach me about|Talk about|Give me an overview of|Summarize} <topic>{ to me| to a child| in simple words| in detail| in one sentence|}.", "{What is|What are|What's} <topic>?", "{How|Why} {does|do} <topic> {work|happen|exist|matter}?",
    "Who {invented|discovered|created|started} <topic>?", "When {was|did} <topic> {invented|start|end|happen|begin|discovered}?", "Where {is|was|can I find} <topic>?", "{What|Which} is the {best|biggest|oldest|fastest|richest|most famous|tallest} <thing> in {the world|<country>|<city>|history}?",
    "What do you {think|know} about <topic>?", "{How {far|long|tall|old|heavy|deep|high|fast} is|What is the {height|age|weight|length|speed} of} <topic>?", "{Who {wrote|painted|composed|directed|sang|said}|What year was} {<topic>|this {song|book|movie}|the {book|movie|song|play} <topic>}?",
    "What is the {meaning of life|answer to everything|chemical symbol for gold|speed of light|distance to the moon|boiling point of water|largest planet|smallest country|formula for water|square root of 2|value of pi}?",
    "{Who won|Who will win|What was the score of} the {World Cup|election|game|match|race|Super Bowl|lottery|final}{ in <year>| last year| yesterday|}?", "{Is|Are|Can|Do|Does} <topic> {dangerous|good|real|healthy|true|expensive|important}?",
    "{How many|How much} {people live in <city>|countries are there|planets are there|bones does a human have|stars are in the sky|does a <thing> cost|money does a <job> make|species of <animal> exist}?",
    "What did <name> {say|do|write|eat|buy}{ yesterday| last week| about <topic>|}?", "{What is|Tell me} the {recipe for|secret of|difference between <topic> and|origin of|purpose of|point of|future of|history of} <topic>?",
    "Why {is|are} the {sky blue|grass green|sea salty|leaves green|sun hot|dinosaurs gone}?", "{Who is|Who was|Do you know|Have you heard of|Tell me about} {<name>|<fullname>|the {<role>}}?", "{Should I|Can I|How do I|How can I|What happens if I} {buy|sell|learn|eat|make|build|fix|find|use|cook|grow} {a <thing>|<topic>|<food>}?",
    "How many {moons|rings} does {Mars|Jupiter|Saturn|Earth} have?", "Which {team|company|country|language|planet|element|animal} is {the best|the largest|the fastest|the oldest|better}?", "What {happened|was invented} in <year>?", "What is the {phone number|address|email|birthday} of {<fullname>|the <role> of <country>}?",
]
CANNOT_ASK = [
    "{Write|Compose|Make|Create|Generate|Give me} {a|an|me a|a short|a long} {poem|story|song|essay|letter|haiku|speech|blog post|novel|script|article|limerick} {about|on|for} {<topic>|<name>|a <thing>|my {mother|father|dog|cat|boss}}.",
    "{Translate|Say|Write} {\"<sentence>\"|this|<sentence>|<thing>} {in|into|to} {French|German|Spanish|Chinese|Italian|Japanese|Latin|Russian|Arabic}.", "{Write|Give me|Show me} {a program|a function|code|a script|a {Python|Java|C++|Rust} program} {that|to|which} {sorts a list|prints primes|plays chess|reads a file|counts words|draws a <thing>}.",
    "{Draw|Paint|Show me|Generate|Make} {a picture|an image|a photo|a drawing} of {a <animal>|a <thing>|<topic>|<city>}.", "{Play|Sing} {a song|some music|me a song|a game of chess|the piano}.", "{Open|Browse|Visit|Look up} {the internet|a website|the web|<topic> online|Google}.",
    "{Tell me a {story|fairy tale|secret|riddle|fun fact}|Give me {advice|a tip|an idea|a quote|a recipe}}{ about <topic>| for <food>|}.", "{Call|Text|Email|Phone} {my mother|<name>|the police|a taxi|my boss}.", "{Predict|Guess|Foresee} {the future|the weather|the stock market|my age|the lottery numbers}.",
    "{Help me|Can you help me} {write my {thesis|essay|resume|homework}|fix my {car|computer|code}|plan {a trip to <city>|my wedding|a party}|learn <topic>}.",
]
LIVE_ASK = ["{What is|What's|How is|How's|Tell me|Check} the {weather|temperature|forecast} {in <city>|today|tomorrow|outside|like today|like in <city>|right now|there}{ today| now|}?", "{What is|What's|Tell me} the {news|latest news|stock price of <topic>|price of <thing>|exchange rate|traffic in <city>|score of the game}{ today| now| right now|}?",
            "{What time is it|What's the time|Tell me the time|What time is it in <city>}{ now| right now|}?", "{Is it|Will it be|Will it} {raining|rain|sunny|snow|cold|warm} {in <city>|today|tomorrow|outside}?", "{What is|What's} {happening|going on} {in <city>|in the world|today|right now}?", "{Where am I|What is my location|Where is my {phone|car|dog|package}}?"]


def topic_values(rng):
    return dict(role=rng.choice(PEOPLE), country=rng.choice(W.COUNTRIES), city=W.city(rng), topic=rng.choice(W.TOPICS) if rng.random() < 0.75 else rng.choice(W.COMMON + W.NOUNS + W.OBJECTS), thing=rng.choice(W.OBJECTS + W.NOUNS),
                year=rng.randint(1800, 2030), job=rng.choice(W.JOBS), animal=rng.choice(W.ANIMALS), name=W.first_name(rng), fullname=W.full_name(rng), food=rng.choice(W.FOODS), sentence=f"the {rng.choice(W.ADJECTIVES)} {rng.choice(W.OBJECTS)}")


def small_talk(rng, effort):
    if rng.random() < 0.05:
        i = rng.randrange(3)
        user = ask(rng, "{Tell me|Do you know|Give me|Say} {a joke|another joke|something funny}{ about tensors| about small models| about numbers}.".replace("{ about tensors| about small models| about numbers}", ["{| about tensors| about computers}", " about {small models|models|yourself}", " about {numbers|six|math}"][i]))
        return Sample(user, JOKES[i], ("exact", JOKES[i]), "They want a joke.", JOKES[i], styled=False)
    if rng.random() < 0.06:
        nonsense = rng.choice(["".join(rng.choice("asdfghjklqwertyuiopzxcvbnm") for _ in range(rng.randint(3, 14))), " ".join(W.invented(rng, 1, 3) for _ in range(rng.randint(1, 5))), "?" * rng.randint(1, 4), "...", " ".join(rng.choice(W.OBJECTS + W.ADJECTIVES) for _ in range(rng.randint(2, 5)))])
        final = "I am not sure what you mean. Please ask in other words."
        return Sample(nonsense, final, ("exact", final), "I do not understand this.", final, styled=False)
    questions, answer, thought = rng.choice(TALK)
    return Sample(ask(rng, questions), answer, ("exact", answer), thought, answer, styled=False)


def open_world(rng, effort):
    r = rng.random()
    pool, answer, thought = (UNKNOWN_ASK, UNKNOWN, "This asks for knowledge of the world that I do not have.") if r < 0.62 else (CANNOT_ASK, CANNOT, "This asks for something I cannot do.") if r < 0.82 else (LIVE_ASK, LIVE, "This asks for live information, and I have none.")
    user = ask(rng, rng.choice(pool), **topic_values(rng))
    return Sample(user, answer, ("text", "tiny demonstration model"), thought, answer, styled=False)


ABOUT_ME = [("My name is <v>.", "What is my name?|Who am I?|Do you remember my name?|Tell me my name.|What did I say my name was?", "Your name is <v>.", W.first_name),
            ("I live in <v>.", "Where do I live?|Which city do I live in?|What city do I live in?", "You live in <v>.", W.city),
            ("I am <v> years old.", "How old am I?|What is my age?", "You are <v> years old.", lambda r: str(r.randint(5, 95))),
            ("My favorite color is <v>.", "What is my favorite color?|Which color do I like best?", "Your favorite color is <v>.", lambda r: r.choice(W.COLORS)),
            ("I work as a <v>.", "What is my job?|What do I do for a living?|What do I work as?", "You work as a <v>.", lambda r: r.choice(W.JOBS)),
            ("My {dog|cat|pet} is called <v>.", "What is my pet called?|What is the name of my pet?", "Your pet is called <v>.", W.first_name),
            ("My lucky number is <v>.", "What is my lucky number?", "Your lucky number is <v>.", lambda r: str(r.randint(1, 9999))),
            ("My birthday is {on |}<v>.", "When is my birthday?", "Your birthday is <v>.", lambda r: f"{r.choice(W.MONTHS)} {r.randint(1, 28)}"),
            ("I have <v> {children|kids}.", "How many children do I have?|How many kids do I have?", "You have <v> children.", lambda r: str(r.randint(2, 9))),
            ("I like to eat <v>.", "What do I like to eat?", "You like to eat <v>.", lambda r: r.choice(W.FOODS)),
            ("The password is <v>.", "What is the password?|What was the password?|Tell me the password.", "The password is <v>.", W.code),
            ("My phone number is <v>.", "What is my phone number?", "Your phone number is <v>.", lambda r: str(r.randint(100000, 9999999)))]


def told_before(rng, effort):
    """The user tells something, other turns may follow, then asks for it."""
    picked = rng.sample(ABOUT_ME, rng.randint(1, 3))
    values = [maker(rng) for _, _, _, maker in picked]
    told = " ".join(fill(expand(rng, t), {"v": v}) for (t, _, _, _), v in zip(picked, values))
    if rng.random() < 0.3:
        told = rng.choice(["Please remember: ", "Remember this: ", "Hi! ", "Note this. ", "Hello, "]) + told
    i = rng.randrange(len(picked))
    reply = "Thank you, I will remember that."
    before = [H.message("user", told), H.message("assistant", reply, "final")]
    for _ in range(rng.choice([0, 0, 1, 2])):
        t = rng.choice([small_talk, open_world])(rng, effort)
        before += [H.message("user", t.user), H.message("assistant", t.final, "final")]
    _, questions, answer, _ = picked[i]
    if rng.random() < 0.25:  # told and asked in one breath
        final = fill(answer, {"v": values[i]})
        return Sample(told + rng.choice([" ", " ", "\n"]) + ask(rng, rng.choice(questions.split("|"))), final, ("text", values[i]), f"They said: {told}", values[i])
    final = fill(answer, {"v": values[i]})
    if rng.random() < 0.15:
        return Sample(told, reply, ("exact", reply), "They tell me about themselves. I will remember it.", reply, styled=False)
    return Sample(ask(rng, rng.choice(questions.split("|"))), final, ("text", values[i]), f"Earlier they said: {told}", values[i], before=before)
