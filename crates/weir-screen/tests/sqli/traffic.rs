//! Ordinary requests, made up from parts by a seeded generator: shops, forums, forms, JSON, cookies of
//! analytics tools.

use weir_screen::sqli::BodyKind;

/// A request.
#[derive(Debug)]
pub struct Request {
    pub path: String,
    pub query: String,
    pub headers: Vec<(&'static str, String)>,
    pub body: Option<(BodyKind, String)>,
}

const NAMES: &[&str] = &[
    "O'Reilly",
    "O'Brien",
    "D'Angelo",
    "N'Golo Kanté",
    "Ma'ruf",
    "L'Hôpital",
    "Van't Hoff",
    "Anne-Marie",
    "Smith",
    "Müller",
    "García",
    "O'Hara-Jones",
    "d'Artagnan",
    "Te'o",
    "Ba'ath",
    "Jean-Luc",
    "Sant'Agata",
    "Al-Sa'ud",
    "Union",
    "Null",
    "Orlando Bloom",
    "Andy Or",
    "Select Comfort",
    "M'Bappé",
];
const SEARCHES: &[&str] = &[
    "1 or 2 items",
    "7 and a half",
    "5' x 7' rug",
    "3/4\" pipe",
    "size 10 or less",
    "\"red shoes\" -heels",
    "rock 'n' roll",
    "levi's 501",
    "women's coats",
    "select committee",
    "credit union",
    "union jack",
    "order by phone",
    "drop table leaf",
    "5 and under",
    "\"pink\" or \"rose\"",
    "c++ vs c#",
    "black & white",
    "r&d jobs",
    "50% off",
    "100% cotton",
    "14\" laptop case",
    "m&m's",
    "toys 'r' us",
    "ben & jerry's",
    "case of 12",
    "and then there were none",
    "like new (boxed)",
    "table, chairs; set of 4",
    "insert for kallax",
    "update my address",
    "delete my account",
    "where to buy",
    "is null a number",
    "between 10 and 20",
    "not for sale",
    "king's cross",
    "it's 5 o'clock somewhere",
    "if/else",
    "1+1=2",
    "a=b",
    "x > 5",
    "<3 gifts",
    "#1 dad mug",
    "-5 degrees",
    "2 x 4 lumber -- treated",
    "guns n' roses",
    "'90s music",
    "hawaii five-0",
    "what's up doc?",
    "50/50",
    "24/7",
    "a.b.c",
    "(555) 123-4567",
    "rent / buy",
    "cast iron",
    "limit switch 5a",
    "having fun",
    "group by design",
    "execute order 66",
    "grant writing",
    "the who",
    "exec chair",
    "create & craft",
    "true or false",
];
const PROSE: &[&str] = &[
    "I can't get this to work, it's driving me mad; any ideas?",
    "We'd like to order 2 tables and 8 chairs -- is delivery included?",
    "How do I SELECT rows FROM one table WHERE the id isn't in another?",
    "The query is: SELECT a, b FROM t WHERE c = 1 ORDER BY d. It's slow.",
    "Use UNION ALL instead of UNION if you don't need distinct rows.",
    "In Python: print('hello ' + name + '!')",
    "```sql\nSELECT count(*) FROM orders GROUP BY customer_id HAVING count(*) > 5;\n```",
    "* one\n* two\n\n> quoted 'text' and \"more\"\n\n[link](https://a.example/?q=1&r=2)",
    "const a = b || 'default'; if (a && c > 1) { d(a); }",
    "He said \"yes\" or \"no\" -- I don't remember; it doesn't matter.",
    "The boys' room and the girls' room are both free, aren't they?",
    "Don't drop the table! (It's an antique.)",
    "My password has ' and \" and ; in it, is that OK?",
    "Size: 5'11\", weight: 180 lbs; waist 34\"",
    "The sentence 'to be or not to be' is from Hamlet, isn't it?",
    "if x == 'a' or y == 'b':\n    return x['key'] # the answer",
    "<p class=\"x\">It's <b>bold</b> &amp; 'quoted'</p>",
    "E = mc^2, a^2 + b^2 = c^2, 1 < 2 and so on",
    "C:\\Users\\O'Neil\\Documents; /home/o'neil/a b.txt",
    "SQL injection is when somebody types a quote and the statement breaks.",
    "Please update my address: 12 King's Rd; insert it into the file and delete the old one.",
    "Why is null = null not true? And what about null or true?",
    "left join or inner join? I'd select the first, then group by date.",
    "The '#' sign, the '&' sign and the '=' sign",
    "What time is it? 5-6pm or 7:30; the children's party is on 3/4.",
];
const COOKIES: &[&str] = &[
    "_ga=GA1.2.1234567890.1600000000",
    "_gid=GA1.2.987654321.1600000001",
    "_fbp=fb.1.1600000000000.1234567890",
    "OptanonConsent=isGpcEnabled=0&datestamp=Mon+Nov+02+2026+10%3A00%3A00+GMT%2B0100&version=6.33.0&groups=C0001%3A1%2CC0002%3A0",
    "theme=dark",
    "PHPSESSID=abcdef0123456789abcdef0123",
    "cart=%7B%22items%22%3A%5B%7B%22id%22%3A1%2C%22name%22%3A%22Levi%27s%22%7D%5D%7D",
    "__utmz=1.1600000000.1.1.utmcsr=google|utmccn=(organic)|utmcmd=organic|utmctr=(not%20provided)",
    "ajs_user_id=%22u-123%22",
    "amplitude_id=eyJkZXZpY2VJZCI6IjEyMyJ9",
    "_hjSession_1=eyJpZCI6ImEiLCJjIjoxfQ==",
    "euconsent-v2=CPxxxxAPxxxxABCDEAENCqCgAAAAAAAAAAAAAAAA.YAAAAAAAAAAA",
    "mp_1_mixpanel=%7B%22distinct_id%22%3A%20%221-2-3%22%7D",
];
const AGENTS: &[&str] = &[
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.0 Mobile/15E148 Safari/604.1",
    "curl/8.14.1",
    "Mozilla/5.0 (compatible; bot/2.1; +https://bot.example/about.html)",
    "okhttp/4.12.0",
    "Dalvik/2.1.0 (Linux; U; Android 14; O'Phone Build/A'1)",
];
const FIELDS: &[&str] = &[
    "q",
    "name",
    "comment",
    "id",
    "page",
    "sort",
    "filter[price]",
    "utm_source",
    "items[]",
    "message",
    "address",
    "date",
];

struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: usize) -> usize {
        // Marsaglia, "Xorshift RNGs", 2003.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % bound
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }

    fn value(&mut self) -> String {
        match self.below(12) {
            0 | 1 => self.of(NAMES).to_owned(),
            2..=4 => self.of(SEARCHES).to_owned(),
            5 => format!("{} {}", self.of(NAMES), self.of(NAMES)),
            6 => self.of(PROSE).to_owned(),
            7 => format!("{} {}", self.of(PROSE), self.of(PROSE)),
            8 => format!("{}-{:08x}", self.below(1000), self.below(usize::MAX)),
            9 => format!("{} {}", self.of(SEARCHES), self.of(SEARCHES)),
            10 => format!(
                "2026-{:02}-{:02} {:02}:{:02}",
                self.below(12),
                self.below(28),
                self.below(24),
                self.below(60)
            ),
            _ => format!("{},{};{}", self.below(100), self.below(100), self.below(9)),
        }
    }
}

fn encoded(text: &str, out: &mut String) {
    for byte in text.bytes() {
        match byte {
            b' ' => out.push('+'),
            byte if byte.is_ascii_alphanumeric() || b"-_.~'()*!;:@,/?".contains(&byte) => {
                out.push(char::from(byte))
            }
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
}

fn form(draws: &mut Draws) -> String {
    let mut out = String::new();
    for number in 0..1 + draws.below(5) {
        if number > 0 {
            out.push('&');
        }
        let (field, value) = (draws.of(FIELDS), draws.value());
        encoded(field, &mut out);
        out.push('=');
        encoded(&value, &mut out);
    }
    out
}

fn json(draws: &mut Draws) -> String {
    let pairs: Vec<String> =
        (0..1 + draws.below(5)).map(|_| format!("{:?}: {:?}", draws.of(FIELDS), draws.value())).collect();
    format!("{{\"id\": {}, \"data\": {{{}}}}}", draws.below(1000), pairs.join(", "))
}

fn multipart(draws: &mut Draws) -> String {
    let part = |draws: &mut Draws| {
        format!(
            "--XyZ\r\nContent-Disposition: form-data; name=\"{}\"\r\n\r\n{}\r\n",
            draws.of(FIELDS),
            draws.value()
        )
    };
    let parts: String = (0..1 + draws.below(3)).map(|_| part(draws)).collect();
    format!("{parts}--XyZ--\r\n")
}

/// That many requests; the same for the same seed.
pub fn requests(seed: u64, count: usize) -> impl Iterator<Item = Request> {
    let mut draws = Draws(seed);
    (0..count).map(move |_| {
        let mut path = "/shop".to_owned();
        for _ in 0..1 + draws.below(3) {
            path.push('/');
            let mut segment = String::new();
            encoded(&draws.value().replace('/', "-"), &mut segment);
            path.push_str(&segment.replace('+', "%20").replace('?', "%3F"));
        }
        let cookies: Vec<&str> = (0..draws.below(5)).map(|_| draws.of(COOKIES)).collect();
        let referer = format!("https://shop.example/search?{}", form(&mut draws));
        let headers = vec![
            ("user-agent", draws.of(AGENTS).to_owned()),
            ("accept-language", "en-GB,en;q=0.9,de;q=0.8".to_owned()),
            ("x-forwarded-for", "192.0.2.1, 198.51.100.7".to_owned()),
            ("cookie", cookies.join("; ")),
            ("referer", referer),
            ("x-request-id", format!("{:016x}", draws.below(usize::MAX))),
        ];
        let body = match draws.below(5) {
            0 => Some((BodyKind::Form, form(&mut draws))),
            1 => Some((BodyKind::Json, json(&mut draws))),
            2 => Some((BodyKind::Multipart(b"XyZ"[..].into()), multipart(&mut draws))),
            _ => None,
        };
        Request { path, query: form(&mut draws), headers, body }
    })
}

/// Every name, search and sentence, alone and followed by every other.
pub fn pairs() -> impl Iterator<Item = String> {
    let all = || NAMES.iter().chain(SEARCHES).chain(PROSE);
    all()
        .map(|text| (*text).to_owned())
        .chain(all().flat_map(move |one| all().map(move |other| format!("{one} {other}"))))
}
