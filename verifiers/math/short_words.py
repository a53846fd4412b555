"""Words of two and three letters that an answer may be. Tables only; `letters` decides with them.

Left out: what is a product of letters at least as often (at, by, ax, ma), and names of functions and Greek
letters, which the parser knows. Longer runs of letters need no table: they are words."""

SHORT_WORDS = frozenset(
    # Answers to a question.
    "no on ok up yes yep nay aye nah dne yea yup any all nil odd one two six ten off out low top few not "
    "nor tie win won max min sum add red tan end new old hot wet dry big fat sad mad bad shy sly raw ill "
    # Weekdays, months, people.
    "mon tue wed thu fri sat sun jan feb mar apr may jun jul aug sep oct nov dec abe ada aki ali amy ana "
    "ann art asa ava bea ben bev bob cal cam cat che dan deb dee des don dot ed eli ema emi eva eve fay "
    "flo fox gia gil gus guy hal han hao hua ian ida ike ina ira isa ivy jax jay jed jen jia jim jin jon "
    "joe kai kat kay ken kia kim kip kit lea lee len leo les lev lex lia lil lin liu liv liz lou lua luz "
    "mae mai mat meg mel mia moe nan nat ned nia nik noa ora pam pat peg pia rae raj ray reg ren rex ria "
    "rob rod ron roy rui sal sam sid sky stu sue syd tad tam tao ted tia tim tom uma una val van vic viv "
    "wei wes yan yin zac zev zia zoe "
    # Things, deeds and kinds.
    "ace act age ago aid aim air ale ant ape apt arc are arm ash ask asp ate awe axe bag bay ban bar bat "
    "bed bee beg bet bid bin bit bow box boy bud bug bun bus but buy bye cab can cap car cop cow cry cub "
    "cud cue cup cut dam day den dew did die dig dim dip doe dog due dug duo dye ear eat ebb eel egg ego "
    "elf elk elm emu era ewe eye fad fan far fax fed fee fen fib fig fin fir fit fix flu fly foe fog for "
    "fry fun fur gag gap gas gel gem get gin god got gum gun gut gym had ham has hat hay hen her hey hid "
    "hip his hit hog hop how hub hue hug hum hut ice icy ink inn ion ire its jab jam jar jaw jet jig job "
    "jog joy jug keg key kid kin lab lad lag lap law lay led leg let lid lie lip lit log lot lug man map "
    "men met mix mob mom mop mud mug nag nap net nib nip nit nod now nun nut oak oar oat oil orb ore our "
    "owe owl own pad pal pan paw pay pea pen pet pew pie pig pin pit ply pod pot pro pry pub pun pup put "
    "rag ram ran rap rat rib rid rig rim rip row rub rug rum run rut rye sac sag sap saw say sea see set "
    "sew she sin sip sir sit ski sob soy spa spy sty sub tab tag tap tar tax tea the tin tip toe ton too "
    "toy try tub tug urn use vat vet via vow wag war was wax way web who why wig wit woe wry yak yam yap "
    "yen yet you zap zip zoo amp ohm lux mol "
    # What is written in capitals.
    "aas sas sss ssa hl ne nw se sw usa uk eu un tv pc ai dna rna cpu gpu rom atp adp "
    # Also in two letters.
    "he hi me us we".split()
)
