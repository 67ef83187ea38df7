"""Measures what search finds for a person's words, by words alone and with vectors.

    python -m bench.search_quality

The tools and requests are written for this. None was changed after it was measured, but the
constants of `vectors` were chosen on them too: elsewhere expect less. Tools that nobody asks for
are added up to 1,000 and 10,000. Needs `clawmode[search]`.
"""

import re
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import islice, product
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from clawmode.catalog.search import Document, Ranker, SearchIndex
from clawmode.catalog.vectors import VectorRanker

LIMIT = 8
SIZES = (0, 1_000, 10_000)

# name(parameters): description
#   keywords
#   the same in other words
#   what a person might say instead, once or twice
ASKED = """
issue_refund(charge_id, amount): Return a charge to the customer's card
  refund customer payment
  give money back to a customer
  give the shopper their money back
  undo a payment
create_invoice(customer_id, lines): Create an invoice for a customer and mail it
  create invoice
  bill a client
  bill the client for last month
list_transactions(account, since): List the transactions of a bank account
  bank transactions list
  show payments of my account
  what did I spend this week
transfer_funds(from_account, to_account, amount): Move funds between two accounts
  transfer money between accounts
  send money to another account
  wire cash to my savings
convert_currency(amount, source, target): Convert an amount at today's exchange rate
  currency exchange rate conversion
  change dollars to euros
  how many yen is fifty dollars
get_stock_quote(symbol): The latest price of a share on an exchange
  stock price
  current share value of a company
  how is Apple trading
read_file(path): Read the contents of a text file
  read file contents
  open a document on disk
  show me what is in notes.txt
write_file(path, content): Write text to a file, replacing it
  save text to file
  store a note in a document
  save this to disk
delete_path(path): Remove a file or folder for good
  delete file
  erase a directory
  get rid of the old directory
find_files(pattern, root): Find files by a glob pattern
  search files by name
  locate documents on the computer
  where are my spreadsheets
compress_folder(path): Pack a folder into a zip archive
  zip directory
  shrink a directory into one archive
  make this smaller so I can send it
  bundle the directory
send_email(to, subject, body): Send a message to an address
  send email
  write a mail to a colleague
  write to Anna that I am late
  drop Bob a line
search_mailbox(query): Search messages in the inbox
  search emails
  look through my mails
  did the landlord reply
create_calendar_event(title, start, end): Add an event to the calendar
  add calendar event
  schedule a meeting
  schedule a meeting with the team tomorrow
  put lunch with Ann in my diary
list_free_slots(people, day): Times at which everybody is available
  find meeting availability
  find a time when all are free
  when can we all meet
set_reminder(text, at): Remind the user at a given time
  create reminder
  remember something for later
  don't let me forget to call mum
start_timer(seconds): Count down and ring
  timer countdown
  alarm after a few minutes
  wake me in ten minutes
send_sms(number, text): Send a text message to a phone
  send text message
  text someone on their mobile
  text my sister
place_phone_call(number): Dial a number and connect the user
  make phone call
  telephone somebody
  ring the dentist
post_chat_message(channel, text): Post to a Slack channel
  send slack message
  tell the team on slack
  tell everyone in the team room
create_issue(repo, title, body): Open an issue in a repository
  create github issue
  report a bug on github
  file a bug report
merge_pull_request(repo, number): Merge a pull request into its base branch
  merge PR
  accept a code change into main
  land the reviewed change
list_commits(repo, branch): The commits of a branch, newest first
  git log commits
  recent changes of a branch
  what changed in the code lately
run_tests(path): Run the test suite and report failures
  run unit tests
  check that the code works
  check that nothing is broken
deploy_service(service, version): Roll out a version of a service to production
  deploy to production
  release a new version
  ship the new release
  push it live
restart_service(service): Stop a service and start it again
  restart server
  reboot an application
  the server hangs, reboot it
tail_logs(service, lines): The last lines of a service's log
  view service logs
  show recent errors of the application
  why did the backend crash
get_metrics(service, window): CPU, memory and latency of a service
  cpu memory usage
  how much memory does the server use
  is the machine overloaded
rotate_secret(name): Replace a credential by a fresh one
  rotate api key
  change a password
  our password leaked, change the key
run_sql(statement): Run a query against the warehouse
  sql database query
  ask the database
  how many users signed up in May
export_csv(table): Write a table to a comma-separated file
  export data to csv
  save rows as a spreadsheet
  I want this in Excel
plot_chart(values, kind): Draw a line, bar or pie chart
  create chart
  draw a graph of numbers
  visualise the sales figures
  make a graph
current_weather(city): Conditions and temperature at a place
  current weather temperature
  how warm is it now in Paris
  do I need an umbrella
  is it cold outside
weather_forecast(city, days): The forecast for the coming days
  weather forecast tomorrow
  will it rain tomorrow
  will it rain on Sunday
get_directions(origin, destination, mode): A route between two places
  route navigation directions
  find the way to an address
  how do I get to the airport
  quickest way home by bike
find_places(kind, near): Restaurants, shops and sights near a place
  nearby restaurants
  recommend a cafe nearby
  somewhere to eat around here
book_flight(from_airport, to_airport, date): Reserve a seat on an airline
  flight booking
  buy a plane ticket
  I want to fly to Lisbon
reserve_hotel(city, checkin, nights): Reserve a room for some nights
  hotel booking
  book accommodation
  I need a place to sleep in Rome
rent_vehicle(city, days): Hire a car or van
  car rental
  lease an automobile
  get me an automobile for the weekend
track_parcel(number): Where a shipment is and when it arrives
  package tracking
  where is my delivery
  where is my package
translate_text(text, target): Translate text into another language
  translation
  say it in Spanish
  how do you say thanks in Japanese
  put this into French
summarize_text(text): Shorten a text to its main points
  summarize document
  short version of a long article
  give me the gist of this article
  too long, make it brief
check_spelling(text): Find typos and grammar mistakes
  grammar check
  correct errors in my writing
  proofread my letter
detect_sentiment(text): Whether a text is positive or negative
  sentiment analysis
  is this opinion good or bad
  are the reviews happy or angry
transcribe_audio(file): Speech in a recording to text
  speech to text
  turn a voice memo into words
  write down what was said in the interview
synthesize_speech(text, voice): Read text aloud as audio
  text to speech
  speak a sentence aloud
  say this out loud
generate_image(prompt): Make a picture from a description
  image generation
  draw a picture of a cat
  draw me a cat wearing a hat
resize_image(file, width): Change the dimensions of a picture
  scale image
  make a photo smaller
  this photo is too large for the page
remove_background(file): Cut out the subject of a photo
  remove image background
  erase what is behind the person in a photo
  make the backdrop transparent
play_music(artist, title): Play a song on the speakers
  play song
  listen to a track
  put on some jazz
set_thermostat(room, degrees): Set the heating of a room
  thermostat temperature control
  make the room warmer
  it is chilly in the bedroom, warm it up
switch_light(room, on): Turn lamps on or off
  turn on lights
  turn off the lamp
  it is too dark in the kitchen
lock_door(door): Lock a smart door
  smart lock door
  close the entrance securely
  did I leave the house open? secure it
start_vacuum(room): Send the robot to clean the floor
  robot vacuum cleaner
  clean the carpet
  hoover the living room
order_groceries(items): Buy food and have it delivered
  grocery delivery
  shop for food
  we are out of milk
find_recipe(ingredients): Dishes that can be made of what is there
  recipe search by ingredients
  ideas for cooking dinner
  what can I cook with eggs and leeks
log_meal(food, grams): Record what was eaten, with calories
  calorie tracking food log
  note down what I ate
  I had a sandwich for lunch
log_workout(kind, minutes): Record an exercise session
  track exercise
  record my run
  I ran five kilometres
book_appointment(doctor, time): Make an appointment at a practice
  schedule doctor appointment
  see a doctor
  I need to see a physician
lookup_drug(name): Side effects and interactions of a medicine
  drug interactions
  is this medication safe
  can I take aspirin with this pill
define_word(word): The dictionary entry of a word
  dictionary definition
  meaning of a term
  what does obstreperous mean
search_web(query): Search the internet
  web search
  look something up online
  google the opening hours
fetch_page(url): Download a web page as Markdown
  fetch url
  download a website
  what does this link say
get_headlines(topic): The latest news on a topic
  latest news
  today's top stories
  what is going on in the world
solve_equation(equation): Solve an equation for its unknowns
  math equation solver
  calculate the unknown in a formula
  work out x
create_contact(name, phone): Add a person to the address book
  add contact
  store somebody's phone number
  save Jim's number
hire_employee(name, role): Add a new member of staff to payroll
  add employee
  register a new worker
  onboard the new colleague
request_leave(start, end): Ask for days off
  vacation request
  take vacation days
  I want to go on holiday in June
submit_expense(amount, receipt): Hand in costs to be paid back
  expense reimbursement
  get travel costs repaid
  I paid for the taxi myself, get it reimbursed
sign_document(document): Add an electronic signature
  e-signature
  electronically sign a contract
  put my name under the contract
"""

# Nothing above, and nothing of the tools that are added, answers these.
UNANSWERED = """
feed the goldfish / which planet has rings / teach me to juggle / tie a bow tie / read my palm
how tall is Everest / tune the piano / sharpen the knives / plant tulips / predict the lottery
tell me a joke / who won the chess championship / braid my hair / identify this mushroom
fold an origami crane / what is my horoscope / knit a scarf / tame a horse
walk the dog / shear the sheep / paint the fence / forge a sword / polish my shoes / blow a bubble
moon phase / dog breeds / chess engine / guitar chords / blood type / volcano eruptions
tarot reading / beekeeping / surf conditions / crossword puzzle / knot tying / sewing pattern
fencing lessons / wine pairing / birdsong recognition / genealogy tree
"""

# Tools that nobody asks for: each verb with each thing.
VERBS = {
    "list": "List all {}s",
    "get": "Get one {} by its id",
    "create": "Create a {}",
    "update": "Change the fields of a {}",
    "archive": "Archive a {} that is no longer used",
    "count": "Count {}s by state",
    "assign": "Assign a {} to an owner",
    "approve": "Approve a {} that waits for review",
    "clone": "Make a copy of a {}",
    "validate": "Validate a {} against the rules of its kind",
}
KINDS = "tenant cluster vendor regional draft legacy shared nightly partner sandbox".split()
THINGS = """
turbine pipeline_stage feature_flag webhook quota policy dashboard sprint milestone epic campaign
segment lead opportunity quotation warehouse pallet batch recipe_template work_order inspection
sensor gateway firmware certificate namespace volume subnet load_balancer dataset model_version
experiment annotation rubric course lesson quiz cohort scholarship claim beneficiary premium
underwriter audit control risk incident runbook oncall_shift postmortem badge visitor parking_permit
meter tariff substation outage permit zoning_case parcel_boundary lease tenant_ledger mortgage
collateral covenant portfolio benchmark_index fund_share dividend trial_site specimen assay
protocol_deviation ward bed_allocation triage_code referral docket filing exhibit deposition
statute trademark patent royalty playlist_slot episode caption broadcast_window seat_map fare_class
crew_roster hangar container vessel berth customs_entry carrier lane dock_door greenhouse
irrigation_zone harvest_plan
""".split()


class Request(NamedTuple):
    """What a person asks, and the position of the tool that answers."""

    text: str
    answer: int


class Quality(NamedTuple):
    """Shares of the requests, the mean reciprocal rank, answers to each, and milliseconds."""

    hit: float
    first: float
    reciprocal: float
    answers: float
    milliseconds: float

    def shown(self) -> tuple[str, ...]:
        return (
            f"{self.hit:.0%}",
            f"{self.first:.0%}",
            f"{self.reciprocal:.2f}",
            f"{self.answers:.1f}",
            f"{self.milliseconds:.2f} ms",
        )


def read_asked() -> tuple[list[Document], dict[str, list[Request]]]:
    """The tools, and what is asked of them, by how far it is from their own words."""
    documents: list[Document] = []
    asked: dict[str, list[Request]] = {"keywords": [], "other words": [], "hints": []}
    for block in re.split(r"\n(?=\S)", ASKED.strip()):
        tool, keywords, others, *hints = map(str.strip, block.splitlines())
        head, description = tool.split("): ")
        name, parameters = head.split("(")
        asked["keywords"].append(Request(keywords, len(documents)))
        asked["other words"].append(Request(others, len(documents)))
        asked["hints"] += [Request(text, len(documents)) for text in hints]
        documents.append(Document(name, "", description, parameters))
    return documents, asked


def read_unanswered() -> list[str]:
    return [text for line in UNANSWERED.strip().splitlines() for text in line.split(" / ")]


def unasked() -> Iterator[Document]:
    for kind, thing, verb in product(["", *KINDS], THINGS, VERBS):
        name = "_".join(filter(None, (verb, kind, thing)))
        what = f"{kind} {thing}".strip().replace("_", " ")
        yield Document(name, "", VERBS[verb].format(what), f"{thing}_id")


def measure(ranker: Ranker, requests: list[Request]) -> Quality:
    ranks: list[int] = []
    answers = 0
    spent: list[float] = []
    for request in requests:
        began = time.perf_counter()
        found = [position for position, _ in ranker.search(request.text, LIMIT)]
        spent.append(time.perf_counter() - began)
        answers += len(found)
        if request.answer in found:
            ranks.append(found.index(request.answer) + 1)
    count = len(requests)
    return Quality(
        len(ranks) / count,
        ranks.count(1) / count,
        sum(1 / rank for rank in ranks) / count,
        answers / count,
        statistics.median(spent) * 1000,
    )


def main() -> None:
    tools, asked = read_asked()
    unanswered = read_unanswered()
    makers: dict[str, Callable[[list[Document]], Ranker]] = {
        "words": SearchIndex,
        "and vectors": lambda documents: VectorRanker(documents, SearchIndex(documents)),
    }
    table = Table("tools", "ranker", "asked in", "hit@8", "hit@1", "MRR", "answers", "search")
    for size in SIZES:
        documents = [*tools, *islice(unasked(), max(size - len(tools), 0))]
        for name, make in makers.items():
            began = time.perf_counter()
            ranker = make(documents)
            ranker.search("first", LIMIT)
            first = time.perf_counter() - began
            head = (f"{len(documents):,}", name)
            for kind, requests in asked.items():
                table.add_row(*head, kind, *measure(ranker, requests).shown())
                head = ("", "")
            filler = sum(bool(ranker.search(text, LIMIT)) for text in unanswered)
            table.add_row("", "", "what nothing answers", f"{filler / len(unanswered):.0%}")
            table.add_row("", "", "first search", *[""] * 4, f"{first * 1000:.0f} ms")
            table.add_section()
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
