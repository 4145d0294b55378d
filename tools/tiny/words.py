"""Word lists and value makers of the data generator.

Everything the generator writes is built from these lists, from templates in the task files and from
invented words, so that the data depends on nothing but this folder and a seed.
"""

FIRST_NAMES = """Ada Adam Aisha Alan Alex Alice Amara Amir Amy Ana Andre Anna Arjun Astrid Ava Bea Ben Bianca Bob Boris
Bruno Carla Carlos Cara Chen Chloe Clara Claire Cyrus Dana Daniel Daria David Diego Dina Dmitri Dora Edgar Elena Eli
Elif Ella Emil Emma Eric Erin Esther Eva Fatima Felix Fiona Frank Freya George Gina Grace Greta Hana Hans Harry Hassan
Heidi Helen Henry Hiro Hugo Ian Ida Igor Ines Ingrid Iris Isaac Ivan Ivy Jack Jacob Jade James Jamal Jana Jane Jasper
Jin John Jonas Jorge Jose Julia Kai Karim Kate Keiko Ken Kofi Lara Laura Lea Lena Leo Liam Lily Lin Linda Lisa Louis
Lucas Lucy Luis Luna Maeve Malik Marco Maria Mark Marta Mary Max Maya Mei Mia Miguel Mike Mila Mina Mira Mohamed Nadia
Naomi Nick Nina Noah Nora Olga Oliver Olivia Omar Oscar Otto Pablo Paul Pavel Pedro Peter Petra Pia Priya Quinn Rachel
Rafael Raj Ravi Rosa Ruby Ruth Sam Sana Sara Sarah Sean Simon Sofia Sven Tara Theo Tim Tina Tom Tomas Uma Vera Victor
Viktor Wanda Wei Will Xena Yara Yusuf Zara Zoe José Zoë Jürgen Chloé François Søren Łukasz Åsa Renée Özlem""".split()
LAST_NAMES = """Abbott Adams Ahmed Allen Andersen Baker Bauer Becker Bell Berg Brown Carter Chen Clark Cohen Costa Cruz
Davis Diaz Dubois Evans Fischer Flores Ford Fox Garcia Gomez Gray Green Hall Hansen Harris Hill Hughes Ito Ivanov
Jackson Jensen Johnson Jones Kaya Keller Khan Kim King Kowalski Kumar Larsen Lee Lewis Li Lopez Martin Meyer Miller
Moore Mori Morris Murphy Nguyen Novak Okafor Olsen Park Patel Perez Petrov Popov Reed Rivera Roberts Rossi Russo Sato
Schmidt Scott Silva Singh Smith Stone Suzuki Tanaka Taylor Thomas Torres Turner Walker Wang Ward Weber White Wilson
Wong Wood Wright Yamada Young Zhang Müller García Peña Škoda Gómez Lindström Nuñez Çelik""".split()
CITIES = """Accra Amsterdam Athens Atlanta Auckland Austin Bangkok Barcelona Basel Beijing Berlin Bogota Boston Brussels
Budapest Cairo Calgary Chicago Cologne Copenhagen Dakar Dallas Delhi Denver Detroit Dubai Dublin Geneva Glasgow Hamburg
Hanoi Helsinki Houston Istanbul Jakarta Karachi Kyiv Kyoto Lagos Lima Lisbon London Lyon Madrid Manila Melbourne Mexico
Miami Milan Montreal Moscow Mumbai Munich Nairobi Naples Oslo Osaka Ottawa Paris Perth Phoenix Porto Prague Quito Riga
Rome Santiago Seattle Seoul Seville Shanghai Singapore Sofia Stockholm Sydney Taipei Tallinn Tokyo Toronto Toulouse
Tunis Turin Valencia Vancouver Venice Vienna Vilnius Warsaw Zagreb Zurich""".split() + [
    "New York", "San Francisco", "Los Angeles", "Cape Town", "Hong Kong", "Buenos Aires", "Tel Aviv", "San Diego", "Rio de Janeiro", "São Paulo", "Zürich", "München", "Málaga", "Reykjavík", "Kraków"]
COUNTRIES = """Argentina Australia Austria Belgium Brazil Canada Chile China Denmark Egypt Finland France Germany Ghana
Greece Hungary Iceland India Indonesia Ireland Israel Italy Japan Kenya Mexico Morocco Nepal Nigeria Norway Peru Poland
Portugal Russia Spain Sweden Switzerland Thailand Turkey Ukraine Vietnam""".split() + ["New Zealand", "South Korea", "the United States", "the United Kingdom"]
ANIMALS = """ant bat bear bee bird camel cat cow crab deer dog dolphin donkey duck eagle elephant falcon fish fox frog
giraffe goat goose hamster hawk hedgehog horse kangaroo koala lion lizard llama monkey moose mouse octopus otter owl
panda parrot penguin pig pigeon pony rabbit raccoon rat raven salmon seal shark sheep snail snake spider squirrel swan
tiger turkey turtle walrus whale wolf zebra""".split()
FRUITS = """apple apricot banana blueberry cherry coconut date fig grape grapefruit kiwi lemon lime mango melon nectarine
olive orange papaya peach pear pineapple plum pomegranate raspberry strawberry tangerine watermelon""".split()
FOODS = """bagel basil bean beet bread broccoli burger burrito butter cabbage cake candy carrot celery cheese chicken
chili chocolate cinnamon coffee cookie corn cream cucumber cupcake curry egg flour garlic ginger honey juice kale leek
lettuce milk mint muffin mushroom noodle nut oat onion pancake pasta pepper pickle pie pizza popcorn potato pretzel
pumpkin radish rice salad salt sandwich sauce soup spinach steak sugar sushi taco tea toast tofu tomato waffle
yogurt""".split()
OBJECTS = """axe backpack bag ball balloon basket battery bed bell belt bench bicycle blanket boat book boot bottle bowl
box bracelet brick broom brush bucket button cable cactus camera candle canoe card carpet chain chair chalk clock coat
coin comb compass computer cup curtain cushion desk diamond dice door drawer dress drill drum engine envelope eraser
fan fence flag flashlight flute fork frame glass glove guitar hammer hat helmet hook jacket jar kettle key keyboard
kite knife ladder lamp lantern laptop lock magnet map marble mask mirror motor mug nail needle notebook oar oven paddle
paint pan paper pearl pen pencil phone piano pillow pin pipe plate pot printer puzzle radio ring robot rocket rope rug
ruler saddle saw scarf scissors screw shelf shirt shoe shovel skate sock sofa spoon stamp stapler stool stove suitcase
sword table tent ticket tie tile timer toolbox towel toy train trumpet truck umbrella vase violin wagon wallet watch
wheel whistle window""".split()
COLORS = """amber beige black blue bronze brown crimson cyan gold gray green indigo ivory lavender lime magenta maroon
navy olive orange pink purple red scarlet silver tan teal turquoise violet white yellow""".split()
ADJECTIVES = """able angry big bold brave bright broken busy calm careful cheap clean clear clever cold cool dark deep
dry early easy empty fair famous fancy fast fine flat fresh friendly funny gentle giant glad golden good great happy
hard heavy high hollow honest hot huge hungry kind large late lazy light little lonely long loud lucky magic modern
narrow neat new nice noisy odd old open plain polite poor pretty proud quick quiet rare rich rough round rusty sad safe
salty secret shallow sharp shiny short shy silent simple sleepy slow small smart smooth soft sour square steep stiff
strange strong sunny sweet tall tame thick thin tidy tiny tired tough ugly useful warm weak wet wide wild wise wooden
young""".split()
PLACES = """airport attic bakery balcony bank barn basement beach bridge cafe castle cave cellar church cinema clinic
closet corner courtyard desert farm field forest garage garden gate gym hall harbor hill hospital hotel house island
kitchen lab lake library lighthouse market meadow mill mine mountain museum office park pond port prison pub river road
roof room school shed shop stable stadium station street studio theater tower tunnel valley village warehouse well
workshop yard zoo""".split()
JOBS = """accountant actor architect artist baker banker barber biologist butcher carpenter chef chemist clerk coach
dancer dentist designer doctor driver editor electrician engineer farmer firefighter fisherman florist gardener guard
guide judge lawyer librarian mechanic miner musician nurse painter pharmacist photographer pilot plumber poet potter
professor programmer reporter sailor scientist sculptor singer soldier surgeon tailor teacher translator waiter weaver
welder writer""".split()
VERBS_PAST = """admired borrowed bought broke brought built carried caught chased cleaned closed collected copied counted
covered crossed described designed drew dropped examined fixed followed forgot found gave guarded held helped hid hit
ignored inspected kept kicked left lifted liked lost loved made measured met missed moved needed noticed opened ordered
packed painted passed picked planned polished pulled pushed raised reached remembered removed repaired returned saw
sent showed signed sold stole studied threw took touched traded turned used visited wanted washed watched won
wrote""".split()
VERBS = """add adjust allow apply archive arrange assign attach block book borrow build buy calculate call cancel change
check choose clean clear close collect compare compute connect convert copy count create cut delete deliver describe
disable download draw drive edit enable erase estimate explain export fetch fill filter find finish fix follow format
generate get give help hide import increase inspect install invite join keep launch learn leave lend list load lock
locate log look make mark measure merge monitor move mute open order organize pack park pause pay pick place plan play
post prepare print process promote publish pull push put query queue rate read rebuild receive record redeem reduce
register release reload remind remove rename rent repair reply report request reserve reset resize restart restore
return reveal review rotate run save scan schedule search select send set share ship show shuffle sign skip sort spell
start stop store submit subscribe suggest sum switch sync tag take test text toggle track train transfer translate
trigger turn type undo unlock update upgrade upload use validate verify view visit wait wake warm wash watch water
wipe write zoom""".split()
NOUNS = """account address agenda alarm album answer appointment article asset backup badge balance bill blog board
booking branch budget bug bus calendar campaign car case channel chapter charge chart chat class client code comment
company concert contact contract country coupon course customer dashboard data database date deal department device
document draft email employee entry error event expense feature file film flight folder form forecast game goal grade
group guest habit heater history holiday image index invoice issue item job journal label language layer lead leave
lesson letter level license line link list location machine member memo menu message meter model module movie music
name network news note number offer option order page parcel password patient payment person photo plan player playlist
poem point policy poll port position post price process product profile program project property quiz quote receipt
recipe record region reminder report request reservation resource result review role route rule sample schedule score
season seat section sensor server service session shelf shift shipment signal site skill slot song source space stage
status step stock story student subject survey system tag task team template term test text theme thermostat thread
ticket time title topic tour trade trip tweet unit user value vehicle vendor version video visit vote voucher weather
website window word workflow workout zone""".split()
COMMON = """about above across after again against ago all almost alone along already also always among and another any
anyone anything around ask away back bad because become before begin behind believe below best better between both
bring but came can cannot certain come could day did different do does done down during each either else end enough
even evening ever every everyone everything exactly example eye face fact family far feel feet few first five foot for
four friend from full further game girl go goes going gone got had half hand has have head hear heart here him himself
his hold home hope hour how however idea if important in inside instead into is it its just keep kind knew know known
land last later least left less let life like line live long look lot made man many mean men might mind minute moment
money month more morning most mother much must my myself near need never next night nine no none nor nothing now of off
often oh on once one only or other our out outside over own part people perhaps person place plenty point possible
problem put question quite rather ready real reason really right said same say second see seem seen seven several shall
she should side since six some someone something sometimes soon sort sound speak stand start state still stop such sun
sure talk tell ten than thank that the their them then there these they thing think third this those though thought
three through time to today together told tomorrow tonight too toward true try turn two under until up upon us use
usual very voice wait walk want was water way we week well went were what when where whether which while who whole whom
whose why wind with within without woman word work world would year yes yesterday yet you your""".split()
TOPICS = """photosynthesis gravity democracy inflation jazz chess football volcanoes dinosaurs electricity magnetism
evolution religion philosophy economics the_moon the_sun black_holes the_stock_market bitcoin quantum_physics
machine_learning the_French_Revolution World_War_II the_Roman_Empire ancient_Egypt the_Eiffel_Tower the_Great_Wall
Shakespeare Mozart Einstein Newton Napoleon Cleopatra climate_change the_internet vaccines antibiotics DNA cancer
diabetes yoga meditation cooking baking knitting gardening sailing poker baseball basketball cricket tennis the_Olympics
the_World_Cup Mars Jupiter Saturn the_Amazon the_Nile Mount_Everest the_Pacific_Ocean tsunamis earthquakes hurricanes
cloud_computing databases compilers Python Java JavaScript C++ Linux Windows blockchain 5G robots drones self-driving_cars
nuclear_power solar_energy oil plastic recycling the_United_Nations the_European_Union taxes mortgages insurance marriage
love happiness death dreams sleep coffee wine beer chocolate cheese bread pizza pasta sushi tea cats dogs horses whales
sharks bees ants spiders trees roses mushrooms algebra geometry calculus statistics poetry novels opera painting
sculpture architecture photography cinema theater fashion""".replace("\n", " ").split()
TOPICS = [t.replace("_", " ") for t in TOPICS]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"]
PLURAL = {"fish": "fish", "sheep": "sheep", "deer": "deer", "mouse": "mice", "goose": "geese", "knife": "knives", "shelf": "shelves",
          "wolf": "wolves", "scarf": "scarves", "salmon": "salmon", "moose": "moose", "dice": "dice", "scissors": "scissors"}
ALL_WORDS = sorted(set(ANIMALS + FRUITS + FOODS + OBJECTS + COLORS + ADJECTIVES + PLACES + JOBS + VERBS + NOUNS + VERBS_PAST +
                       [w for w in COMMON if len(w) > 2]))
ONSETS = "b bl br c ch cl cr d dr f fl fr g gl gr h j k kl kr l m n p ph pl pr qu r s sc sh sk sl sm sn sp st str sw t th tr tw v w wh x y z".split()
VOWELS = "a e i o u a e i o u ai au ea ee ei ia ie io oa oo ou ue y".split()
CODAS = ["", "", "", "", "n", "r", "l", "s", "t", "m", "d", "k", "p", "x", "ck", "ll", "nd", "ng", "nk", "nt", "rd", "rk", "rn", "rt", "sh", "ss", "st", "th"]


def plural(noun):
    """English plural of a noun from the lists above."""
    if noun in PLURAL:
        return PLURAL[noun]
    if noun.endswith(("s", "x", "ch", "sh", "z")) or noun in ("tomato", "potato", "mango"):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def invented(rng, low=1, high=3):
    """An invented word of low to high syllables, lower case."""
    return "".join(rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS) for _ in range(rng.randint(low, high)))


def any_word(rng):
    """Mostly a listed word, sometimes an invented one or a name."""
    r = rng.random()
    if r < 0.62:
        return rng.choice(ALL_WORDS)
    if r < 0.9:
        return invented(rng)
    return rng.choice(FIRST_NAMES + CITIES[:80]).lower()


def first_name(rng):
    return rng.choice(FIRST_NAMES) if rng.random() < 0.85 else invented(rng, 1, 2).capitalize()


def last_name(rng):
    return rng.choice(LAST_NAMES) if rng.random() < 0.75 else invented(rng, 1, 3).capitalize()


def full_name(rng):
    return first_name(rng) + " " + last_name(rng)


def city(rng):
    return rng.choice(CITIES) if rng.random() < 0.85 else invented(rng, 1, 3).capitalize()


def code(rng):
    """A code as people write them: digits, letters or both."""
    r = rng.random()
    if r < 0.4:
        return str(rng.randint(10, 10 ** rng.randint(2, 6)))
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    if r < 0.7:
        return "".join(rng.choice(letters) for _ in range(rng.randint(1, 3))) + rng.choice(["-", ""]) + str(rng.randint(1, 9999))
    if r < 0.85:
        return "".join(rng.choice(letters + "0123456789") for _ in range(rng.randint(4, 8)))
    return rng.choice(ADJECTIVES) + "-" + rng.choice(ANIMALS) + "-" + str(rng.randint(1, 99))


def email(rng):
    return f"{first_name(rng).lower()}{rng.choice(['.', '_', ''])}{last_name(rng).lower()}@{rng.choice(['mail', 'post', 'work', 'home', invented(rng, 1, 2)])}.{rng.choice(['com', 'org', 'net', 'example', 'io'])}"


def clock(rng):
    return f"{rng.randint(0, 23):02d}:{rng.randint(0, 11) * 5:02d}"


def iso_date(rng):
    return f"{rng.randint(1990, 2035)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
